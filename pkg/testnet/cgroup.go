package testnet

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
)

// Cgroup is a control group below the group of this process. Single threads, and processes that they start, can join it: programs attached to it see only the
// sockets of these.
type Cgroup struct{ Path, parent string }

// MakeCgroup creates a group with a unique name that begins with prefix. Its parent is the group of this process, or another group that MakeCgroup created.
func MakeCgroup(below, prefix string) (*Cgroup, error) {
	parent, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%d-%d", prefix, os.Getpid(), time.Now().UnixNano())
	c := &Cgroup{Path: filepath.Join(cmp.Or(below, parent), name), parent: parent}
	if err := os.Mkdir(c.Path, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	if err := write(c.Path, "cgroup.type", "threaded"); err != nil {
		return nil, errors.Join(err, os.Remove(c.Path))
	}
	return c, nil
}

// Join moves the calling thread into the group; Leave moves it back. The caller must have locked the thread.
func (c *Cgroup) Join() error  { return write(c.Path, "cgroup.threads", "0") }
func (c *Cgroup) Leave() error { return write(c.parent, "cgroup.threads", "0") }

// Close removes the group and its children after the last thread and process has left them.
func (c *Cgroup) Close() error { return RemoveCgroup(c.Path) }

// RemoveCgroup removes a group and its children.
func RemoveCgroup(path string) (err error) {
	below, err := filepath.Glob(filepath.Join(path, "*", "cgroup.procs"))
	for _, file := range below {
		err = errors.Join(err, RemoveCgroup(filepath.Dir(file)))
	}
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err = os.Remove(path); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a cgroup: %w", err)
	}
	return nil
}

// RemoveStaleCgroups removes groups with a prefix whose creating process has exited.
func RemoveStaleCgroups(prefix string) error {
	parent, err := ownCgroup()
	if err != nil {
		return err
	}
	all, err := filepath.Glob(filepath.Join(parent, prefix+"-*-*"))
	for _, path := range all {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix+"-"), "-")
		if _, gone := os.Stat("/proc/" + pid); errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, RemoveCgroup(path))
		}
	}
	return err
}

// ownCgroup returns the group of this process.
func ownCgroup() (string, error) {
	mounts, err := cgroups.Mounts("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	if len(mounts) == 0 {
		return "", errors.New("make a cgroup: cgroup2 is not mounted: mount -t cgroup2 none DIRECTORY")
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return filepath.Join(mounts[0], path), nil
		}
	}
	return "", errors.New("make a cgroup: this process is in no group of cgroup2")
}

func write(dir, file, text string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("set up a cgroup: %w", err)
	}
	return nil
}

// NewCgroup creates a group that is removed at the end of the test.
func NewCgroup(t testing.TB) *Cgroup {
	t.Helper()
	RequirePrivileges(t)
	c, err := MakeCgroup("", "waggle-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Enter moves the calling goroutine's thread into the group for the rest of the test, and locks the goroutine to it.
func (c *Cgroup) Enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := c.Join(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Leave(); err != nil {
			t.Error(err)
		}
	})
}
