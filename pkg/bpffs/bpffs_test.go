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

// inMountNamespace runs f on a thread with mounts of its own, which end with the thread.
func inMountNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
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

func TestEnsure_NamesWhatToDo(t *testing.T) {
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
