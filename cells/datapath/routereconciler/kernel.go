package routereconciler

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

var (
	errNoDevice = errors.New("no such device")
	errExists   = errors.New("a route to the same destination exists")
)

// route is a route in the kernel, with the fields that this cell uses.
type route struct {
	Table    int
	Dst      netip.Prefix
	Priority int // metric; the kernel replaces 0 by 1024 in IPv6
	Link     int // ifindex
	Gw, Src  netip.Addr
	MTU      int
	Scope    uint8 // always 0 in IPv6
	Protocol int
}

// kernel is the interface of the reconciler to netlink.
type kernel interface {
	LinkIndex(name string) (int, error) // errNoDevice
	Create(r route) error               // errExists
	Replace(r route) error
	Delete(r route) error // by table, destination, priority and protocol; a missing route is a success
	List() ([]route, error)
}

// netlinkKernel implements [kernel].
type netlinkKernel struct{ handle *rtnl.Handle }

func newKernel(lc cell.Lifecycle) kernel {
	k := &netlinkKernel{}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) (err error) { k.handle, err = rtnl.Open(); return err },
		OnStop:  func(cell.HookContext) error { k.handle.Close(); return nil },
	})
	return k
}

func (k *netlinkKernel) LinkIndex(name string) (int, error) {
	link, err := k.handle.LinkByName(name)
	switch {
	case err == nil:
		return link.Attrs().Index, nil
	case rtnl.IsGone(err):
		return 0, errNoDevice
	}
	return 0, err
}

func (k *netlinkKernel) Create(r route) error {
	switch err := k.handle.RouteAdd(r.netlink()); {
	case errors.Is(err, unix.EEXIST):
		return errExists
	default:
		return err
	}
}

func (k *netlinkKernel) Replace(r route) error { return k.handle.RouteReplace(r.netlink()) }

func (k *netlinkKernel) Delete(r route) error {
	// The device may be removed and other fields may have changed: the protocol identifies the route as owned.
	target := route{Table: r.Table, Dst: r.Dst, Priority: r.Priority, Protocol: r.Protocol, Scope: unix.RT_SCOPE_NOWHERE}
	if err := k.handle.RouteDel(target.netlink()); err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

// List lists unicast routes and all owned routes: local, broadcast and unreachable routes never conflict with an owned one.
func (k *netlinkKernel) List() ([]route, error) {
	all, err := k.handle.Routes()
	if err != nil {
		return nil, err
	}
	var routes []route
	for _, r := range all {
		if r.Type == unix.RTN_UNICAST || r.Protocol == desiredroutes.Protocol {
			routes = append(routes, fromNetlink(r))
		}
	}
	return routes, nil
}

func (r route) netlink() *netlink.Route {
	n := &netlink.Route{LinkIndex: r.Link, Table: r.Table, Priority: r.Priority, Scope: netlink.Scope(r.Scope),
		Protocol: netlink.RouteProtocol(r.Protocol), MTU: r.MTU, Type: unix.RTN_UNICAST,
		Dst: &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())}}
	if r.Gw.IsValid() {
		n.Gw = r.Gw.AsSlice()
	}
	if r.Src.IsValid() {
		n.Src = r.Src.AsSlice()
	}
	return n
}

func fromNetlink(n netlink.Route) route {
	r := route{Table: n.Table, Priority: n.Priority, Link: n.LinkIndex, MTU: n.MTU, Scope: uint8(n.Scope), Protocol: int(n.Protocol)}
	r.Gw, r.Src = unwrap(n.Gw), unwrap(n.Src)
	switch {
	case n.Dst != nil:
		ones, _ := n.Dst.Mask.Size()
		r.Dst = netip.PrefixFrom(unwrap(n.Dst.IP), ones)
	case n.Family == netlink.FAMILY_V6:
		r.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	default:
		r.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return r
}

func unwrap(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// String names the route in errors.
func (r route) String() string { return fmt.Sprintf("%s in table %d", r.Dst, r.Table) }
