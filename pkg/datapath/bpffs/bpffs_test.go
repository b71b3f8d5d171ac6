package bpffs

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// inMountNamespace runs f on a thread in its own mount namespace, which is destroyed with the thread.
func inMountNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Errorf("unshare mounts: %v", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Errorf("make mounts private: %v", err)
			return
		}
		f()
	}()
	<-done
}

func TestPrivilegedEnsure_MountsOnce(t *testing.T) {
	testnet.RequirePrivileges(t)
	root := filepath.Join(t.TempDir(), "made", "on", "demand")
	inMountNamespace(t, func() {
		if mounted, err := Ensure(root); err != nil || !mounted {
			t.Errorf("first Ensure: mounted %v, error %v", mounted, err)
		}
		if is, err := Is(root); err != nil || !is {
			t.Errorf("after Ensure the root is a BPF file system: %v, error %v", is, err)
		}
		if mounted, err := Ensure(root); err != nil || mounted {
			t.Errorf("second Ensure: mounted %v, error %v", mounted, err)
		}
	})
	if is, err := Is(root); err != nil || is {
		t.Errorf("the mount left its namespace: %v, error %v", is, err)
	}
}

func TestEnsure_NamesRemedy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(filepath.Join(file, "below")); err == nil {
		t.Error("a root below a regular file was accepted")
	}
	for _, cause := range []error{unix.EPERM, unix.ENODEV, unix.EBUSY} {
		if got := remedy(cause, "/some/root"); !strings.Contains(got, "/some/root") && !errors.Is(cause, unix.ENODEV) {
			t.Errorf("remedy for %v does not name the mount point: %q", cause, got)
		}
	}
}

func TestPrivilegedUnmount_OnlyOwnAndEmpty(t *testing.T) {
	testnet.RequirePrivileges(t)
	dir := t.TempDir()
	made, there, other := filepath.Join(dir, "made"), filepath.Join(dir, "with space"), filepath.Join(dir, "other")
	for _, d := range []string{there, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	inMountNamespace(t, func() {
		if err := unix.Mount("bpffs", other, "bpf", 0, ""); err != nil {
			t.Error(err)
		}
		for _, root := range []string{made, there, other} {
			if _, err := Ensure(root); err != nil {
				t.Error(err)
			}
			if ours, err := Ours(root); err != nil || ours != (root != other) {
				t.Errorf("%s is ours: %v, %v", root, ours, err)
			}
		}
		foreign := filepath.Join(made, "foreign")
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Error(err)
		}
		if err := Unmount(made); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "foreign") {
			t.Errorf("with a foreign directory: %v", err)
		}
		if err := os.Remove(foreign); err != nil {
			t.Error(err)
		}
		for range 2 {
			for _, root := range []string{made, there, other} {
				if err := Unmount(root); err != nil {
					t.Error(err)
				}
			}
		}
		if is, err := Is(other); err != nil || !is {
			t.Errorf("the mount of another owner: %v, %v", is, err)
		}
		if is, err := Is(there); err != nil || is {
			t.Errorf("ours is still there: %v, %v", is, err)
		}
		if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory that was made is there: %v", err)
		}
	})
}

func TestFindSource_LastMountCounts(t *testing.T) {
	t.Parallel()
	const text = `1 0 0:1 / / rw - ext4 /dev/vda rw
22 1 0:2 / /sys/fs/bpf rw shared:9 master:1 - bpf waggle rw,mode=700
23 22 0:3 / /a\040b\134c rw - bpf waggle rw
broken
`
	for root, want := range map[string]string{"/sys/fs/bpf": "waggle", `/a b\c`: "waggle", "/": "", "/none": ""} {
		if got, err := findSource(strings.NewReader(text), root); err != nil || got != want {
			t.Errorf("%s: %q, %v", root, got, err)
		}
	}
	hidden := text + "30 22 0:9 / /sys/fs/bpf rw - tmpfs waggle rw\n"
	if got, _ := findSource(strings.NewReader(hidden), "/sys/fs/bpf"); got != "" {
		t.Errorf("a hidden mount was found: %q", got)
	}
}
