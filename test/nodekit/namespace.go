package nodekit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// namespaces is a pair of open namespaces that threads can enter.
type namespaces struct {
	net, mnt *os.File // nil if only the network namespace differs
	// group is the control group of all processes that are started inside; nil keeps the current one.
	group *testnet.Cgroup
}

func (n namespaces) Close() error {
	err := n.net.Close()
	if n.mnt != nil {
		err = errors.Join(err, n.mnt.Close())
	}
	return err
}

// newNamespaces creates a network namespace with lo up and a mount namespace with private mounts.
func newNamespaces() (ns namespaces, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare network and mount namespace: %w (are you root?)", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make all mounts private: %w", err)
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		if err := withoutDAD(); err != nil {
			return err
		}
		if ns.net, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		ns.mnt, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	return ns, err
}

// Do runs f on a thread inside the namespaces. Processes that f starts and sockets that f opens are inside too; goroutines that f starts are not.
func (n namespaces) Do(f func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

func (n namespaces) enter() error {
	if n.group != nil {
		if err := n.group.Join(); err != nil {
			return err
		}
	}
	if n.mnt != nil {
		if err := unix.Setns(int(n.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter mount namespace: %w", err)
		}
	}
	if err := unix.Setns(int(n.net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// bindNetwork creates a network namespace and mounts it at path, as container runtimes do. The caller must be in the mount namespace in which path is to
// appear.
func bindNetwork(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make the mount point of a namespace: %w", err)
	}
	_ = file.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare network namespace: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount network namespace at %s: %w", path, err)
	}
	return nil
}

// withoutDAD lets subsequently created links use their link-local addresses immediately: duplicates are impossible on their wires, and duplicate address
// detection would delay every test by a second.
func withoutDAD() error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0); err != nil {
		return fmt.Errorf("turn off duplicate address detection: %w", err)
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	return nil
}

// onThread runs f on a separate thread that ends with f, so that no other goroutine inherits its namespaces. The main thread cannot be used: it cannot end,
// and /proc/self describes it. While this goroutine is locked to the main thread, onThread runs f on another one.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f)
			return
		}
		// Threads share their file system context, and setns rejects a mount namespace while the context is shared.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			result <- fmt.Errorf("unshare the view of the file system: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
