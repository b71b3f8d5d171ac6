// Package cgroups finds the cgroup v2 hierarchy to which the programs for the sockets of a node are attached.
package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// hybrid is the directory below the mount point of version 1 where systemd mounts version 2.
const hybrid = "unified"

// rootInode is the inode of the root group of every hierarchy. A process that sees another inode at the root is in a cgroup namespace.
const rootInode = 1

const remedy = "mount cgroup2 (mount -t cgroup2 none /run/waggle/cgroup2) where the agent can see it, or set its path with --cgroup-root"

// Resolve checks a group that the user named and returns its path. For a mount point of version 1 it returns the mount of version 2 below it.
func Resolve(path string) (string, error) {
	for _, p := range []string{path, filepath.Join(path, hybrid)} {
		if is, err := isGroup(p); is || err != nil && !errors.Is(err, os.ErrNotExist) {
			return p, err
		}
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("use --cgroup-root=%s: %w: %s", path, err, remedy)
	}
	return "", fmt.Errorf("use --cgroup-root=%s: it is not a directory of cgroup2: %s", path, remedy)
}

// Root finds the root group of the machine among the mounts of this process.
func Root() (string, error) { return root("/proc/self/mountinfo") }

func root(mounts string) (string, error) {
	found, err := Mounts(mounts)
	if err != nil {
		return "", err
	}
	for _, path := range found {
		if stat, err := os.Stat(path); err == nil && stat.Sys().(*syscall.Stat_t).Ino == rootInode {
			return path, nil
		}
	}
	if len(found) > 0 {
		return "", fmt.Errorf("find the root of cgroup2: %s begins below it, as in a container: mount /sys/fs/cgroup of the machine into "+
			"the container and set its path with --cgroup-root", strings.Join(found, ", "))
	}
	return "", fmt.Errorf("find the root of cgroup2: it is not mounted: %s", remedy)
}

// Mounts lists the mount points of cgroup2 in a file such as /proc/self/mountinfo.
func Mounts(file string) (paths []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("find cgroup2: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(kind) > 0 && kind[0] == "cgroup2" {
			paths = append(paths, unescape.Replace(fields[4]))
		}
	}
	return paths, nil
}

// unescape reverts the kernel's escapes of white space and backslashes in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func isGroup(path string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return fs.Type == unix.CGROUP2_SUPER_MAGIC, nil
}
