package bpffs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sources of mounts that [Ensure] makes. Only this package and readers of /proc/mounts use them.
const (
	sourceMounted = "waggle"                // the mount point existed
	sourceCreated = "waggle-with-directory" // Ensure created the mount point
)

// ErrInUse means that something is pinned in the BPF file system.
var ErrInUse = errors.New("the file system has foreign pins")

// Ours reports whether [Ensure] mounted the file system on root, in this run or a previous one.
func Ours(root string) (bool, error) {
	source, err := sourceOf(root)
	return source == sourceMounted || source == sourceCreated, err
}

// CreatedDirectory reports whether [Ensure] created the mount point too. It returns false when the file system is no longer mounted.
func CreatedDirectory(root string) (bool, error) {
	source, err := sourceOf(root)
	return source == sourceCreated, err
}

// Unmount reverses [Ensure]: it unmounts the file system of root, and removes the directory if Ensure created it. It leaves a missing file system, or one
// that Ensure did not mount, unchanged and returns no error. If the file system is not empty, the error is [ErrInUse].
func Unmount(root string) error {
	source, err := sourceOf(root)
	if err != nil || source != sourceMounted && source != sourceCreated {
		return err
	}
	others, err := ForeignEntries(root, "")
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("unmount BPF file system of %s: %w: %s", root, ErrInUse, others[0])
	}
	if err := unix.Unmount(root, 0); err != nil {
		return fmt.Errorf("unmount BPF file system of %s: %w", root, err)
	}
	if source == sourceCreated {
		if err := os.Remove(root); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove mount point of the BPF file system: %w", err)
		}
	}
	return nil
}

// ForeignEntries lists the entries of the BPF file system of root, except the path except and the kernel's own files.
func ForeignEntries(root, except string) (names []string, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("read the BPF file system: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); name != "maps.debug" && name != "progs.debug" && filepath.Join(root, name) != except {
			names = append(names, name)
		}
	}
	return names, nil
}

// sourceOf returns the source of the BPF file system that is mounted on root itself; empty without one.
func sourceOf(root string) (string, error) {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	f, err := os.Open("/proc/thread-self/mountinfo") // tests have threads with their own mount namespaces
	if err != nil {
		return "", fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	return findSource(f, root)
}

// findSource reads mountinfo: "36 35 98:0 / /sys/fs/bpf rw,noatime shared:1 - bpf waggle rw". The last mount on a directory hides
// the others.
func findSource(mountinfo io.Reader, root string) (source string, err error) {
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		where, what := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(where) < 5 || len(what) < 2 || unescape(where[4]) != root {
			continue
		}
		if source = ""; what[0] == "bpf" {
			source = what[1]
		}
	}
	return source, lines.Err()
}

// unescape reverses the kernel's escapes of white space and backslashes in names: "\040".
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
