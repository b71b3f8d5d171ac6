package setup

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// namespace is a network namespace that exists only while this process has it open, so a killed run leaves none.
type namespace struct{ file *os.File }

// newNamespace creates a network namespace with lo up.
func newNamespace() (*namespace, error) {
	ns := &namespace{}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w (the setup needs CAP_SYS_ADMIN)", err)
		}
		if ns.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		handle, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer handle.Close()
		lo, err := handle.LinkByName("lo")
		if err == nil {
			err = handle.LinkSetUp(lo)
		}
		return err
	})
	if err != nil {
		if ns.file != nil {
			_ = ns.file.Close()
		}
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return ns, nil
}

// path returns a path of the namespace for child processes.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Close releases the namespace. The kernel deletes it unless it has other users.
func (n *namespace) Close() error { return n.file.Close() }

// do runs f on a thread in the namespace. Sockets that f opens stay in it.
func (n *namespace) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// onlyLoopback returns an error while the link, and with it its addresses, still exists.
func (n *namespace) onlyLoopback() error {
	return n.do(func() error {
		handle, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer handle.Close()
		links, err := handle.Links()
		if err != nil {
			return fmt.Errorf("list the links of the namespace: %w", err)
		}
		for _, l := range links {
			// The kernel creates tunnel devices in every namespace; ignore them.
			if l.Type() == (&netlink.Veth{}).Type() || l.Attrs().Name == interfaceName {
				return fmt.Errorf("the link %s still exists after DEL", l.Attrs().Name)
			}
		}
		return nil
	})
}

// onThread runs f on a dedicated thread that ends with f, so no other goroutine runs in its namespace. The main thread cannot end and would hold the
// namespace until the process ends; if the goroutine is on it, f runs on another thread while the main thread is locked.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f)
			return
		}
		result <- f()
	}()
	return <-result
}
