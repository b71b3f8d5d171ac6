// Package rtnl accesses route netlink: links, addresses, routes and neighbours. It repeats a dump that a change interrupts, and its handles stay in the network
// namespace in which they were opened.
//
// No other package calls the dump functions of package netlink; a test checks this.
package rtnl

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Handle accesses one network namespace: the namespace of the thread that called [Open], or the one given to [OpenAt]. Its methods may be called from any
// goroutine. Requests about one object (LinkAdd, AddrReplace, RouteDel, ...) are the methods of [netlink.Handle].
type Handle struct {
	*netlink.Handle
	ns netns.NsHandle // at the time of [Open]; later subscriptions use it as well
}

// Open opens a handle in the network namespace of the calling thread.
func Open() (*Handle, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of the thread: %w", err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open a route netlink socket: %w", err)
	}
	return &Handle{Handle: h, ns: ns}, nil
}

// OpenAt opens a handle in another network namespace; entering it needs CAP_SYS_ADMIN. The caller keeps the ownership of ns.
func OpenAt(ns netns.NsHandle) (*Handle, error) {
	fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the handle of a network namespace: %w", err)
	}
	h := &Handle{ns: netns.NsHandle(fd)}
	if err := h.within(func() (err error) {
		h.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("open a route netlink socket: %w", err), h.ns.Close())
	}
	return h, nil
}

// Close closes the handle. Subscriptions end with their contexts.
func (h *Handle) Close() {
	h.Handle.Close()
	_ = h.ns.Close()
}

// within runs f on a thread in the handle's namespace. If the thread is already in it, as everywhere in the agent, no privilege is needed.
func (h *Handle) within(f func() error) error {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace of the thread: %w", err)
	}
	defer here.Close()
	if here.Equal(h.ns) {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := netns.Set(h.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = f()
	if back := netns.Set(here); back != nil {
		// The thread stays locked, so it exits with its goroutine: no other goroutine may run on it in this namespace.
		return errors.Join(err, fmt.Errorf("return to the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// IsGone reports whether err means that the object of a deletion (a link, an address, a route, a neighbour) or its device does not exist.
func IsGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) ||
		errors.Is(err, unix.ENODEV) || // the device
		errors.Is(err, unix.ESRCH) || // a route
		errors.Is(err, unix.ENOENT) || // a neighbour, a rule
		errors.Is(err, unix.EADDRNOTAVAIL) // an address
}
