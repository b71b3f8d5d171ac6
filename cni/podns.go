package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/rtnl"
)

// disableIPv6 switches IPv6 off for interfaces that exist and, through its side effect on "default", for later ones.
const disableIPv6 = "/proc/sys/net/ipv6/conf/all/disable_ipv6"

// podHandle changes things inside a pod's network namespace, from any thread.
type podHandle struct {
	*rtnl.Handle
	cookie uint64
	ipv6   bool // permitted for links that are born in it
}

// enter opens the handle.
func (ns *podNamespace) enter() (pod *podHandle, err error) {
	err = ns.do(func() error {
		handle, err := rtnl.Open()
		if err != nil {
			return fmt.Errorf("in the pod's namespace: %w", err)
		}
		off, err := os.ReadFile(disableIPv6)
		pod = &podHandle{handle, cookie(), err == nil && strings.TrimSpace(string(off)) == "0"}
		return nil
	})
	return pod, err
}

// permitIPv6 switches IPv6 on, which has to happen before the link is born.
func permitIPv6() error {
	err := os.WriteFile(disableIPv6, []byte("0"), 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("the kernel has no IPv6; start the agent with --enable-ipv6=false")
	case err != nil:
		return fmt.Errorf("permit IPv6 in the pod: %w", err)
	}
	return nil
}

// family is what a pod gets in one address family.
type family struct {
	addr, gateway netip.Addr
	pool, uuid    string
}

// network is all that a pod gets.
type network struct {
	families []family // IPv6 before IPv4, as in the result
	routeMTU int      // bytes; 0 leaves it to the link
	hostMAC  mac.Addr // what stands behind every gateway
}

// hostPrefix is the prefix of one address.
func hostPrefix(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// everything is the prefix of the default route.
func everything(a netip.Addr) *net.IPNet {
	zero := netip.IPv4Unspecified()
	if a.Is6() {
		zero = netip.IPv6Unspecified()
	}
	return &net.IPNet{IP: zero.AsSlice(), Mask: net.CIDRMask(0, a.BitLen())}
}

// routes returns the routes of one family, the most specific first.
func (n network) routes(f family, index int) []netlink.Route {
	return []netlink.Route{
		{LinkIndex: index, Dst: hostPrefix(f.gateway), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: everything(f.gateway), Gw: f.gateway.AsSlice(), MTU: n.routeMTU},
	}
}

// gatewayNeighbor is the permanent entry that spares the pod from asking for its gateway.
func (n network) gatewayNeighbor(f family, index int) *netlink.Neigh {
	kind := netlink.FAMILY_V4
	if f.gateway.Is6() {
		kind = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: kind, State: netlink.NUD_PERMANENT, IP: f.gateway.AsSlice(),
		HardwareAddr: n.hostMAC.HardwareAddr()}
}

// configure gives the pod's end of a link its addresses, routes and neighbours, and sets it up.
func (pod *podHandle) configure(name string, index int, n network) error {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	for _, f := range n.families {
		addr := &netlink.Addr{IPNet: hostPrefix(f.addr)}
		if f.addr.Is6() {
			addr.Flags = unix.IFA_F_NODAD // nobody else can have it, and waiting a second for that is long
		}
		if err := pod.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s to %s in the pod: %w", addr.IPNet, name, err)
		}
	}
	if err := pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s in the pod: %w", name, err)
	}
	for _, f := range n.families {
		for _, route := range n.routes(f, index) {
			if err := pod.RouteAdd(&route); err != nil {
				return fmt.Errorf("add route %s dev %s in the pod: %w", route.Dst, name, err)
			}
		}
		if err := pod.NeighSet(n.gatewayNeighbor(f, index)); err != nil {
			return fmt.Errorf("add neighbour %s dev %s in the pod: %w", f.gateway, name, err)
		}
	}
	return nil
}
