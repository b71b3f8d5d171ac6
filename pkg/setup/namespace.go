package setup

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/rtnl"
)

// namespace is a network namespace that lives as long as this process has it open, so a killed run leaves none.
type namespace struct{ file *os.File }

// newNamespace makes one with lo up.
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

// path names the namespace to a child of this process.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Close lets the namespace go, unless something else holds it.
func (n *namespace) Close() error { return n.file.Close() }

// do runs f on a thread inside the namespace. Sockets that it opens stay there.
func (n *namespace) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// onlyLoopback wants the link, and with it its addresses, to be gone.
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
			// Tunnel devices that the kernel puts into every namespace are nobody's.
			if l.Type() == (&netlink.Veth{}).Type() || l.Attrs().Name == interfaceName {
				return fmt.Errorf("the link %s is still there after DEL", l.Attrs().Name)
			}
		}
		return nil
	})
}

// onThread runs f on a thread of its own, which ends with f and so never carries a namespace to other goroutines. The main
// thread cannot end, and would hold the namespace as long as the process lives; while it is locked here, another one comes.
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
