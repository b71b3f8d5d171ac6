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

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
)

// disableIPv6 disables IPv6 for existing interfaces and, through its side effect on "default", for later ones.
const disableIPv6 = "/proc/sys/net/ipv6/conf/all/disable_ipv6"

// podHandle configures a pod's network namespace from any thread.
type podHandle struct {
	*rtnl.Handle
	cookie uint64
	ipv6   bool // permitted for links that are created in the namespace
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

// permitIPv6 enables IPv6. It must run before the link is created.
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

// family is a pod's configuration in one address family.
type family struct {
	addr, gateway netip.Addr
	pool, uuid    string
}

// network is a pod's network configuration.
type network struct {
	families []family // IPv6 before IPv4, as in the result
	routeMTU int      // bytes; 0 uses the link's MTU
	hostMAC  mac.Addr // Ethernet address of every gateway
}

// everything returns the prefix of the default route of an address's family.
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
		{LinkIndex: index, Dst: netlink.NewIPNet(f.gateway.AsSlice()), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: everything(f.gateway), Gw: f.gateway.AsSlice(), MTU: n.routeMTU},
	}
}

// gatewayNeighbor returns the permanent neighbour entry of the gateway, which makes neighbour discovery unnecessary.
func (n network) gatewayNeighbor(f family, index int) *netlink.Neigh {
	kind := netlink.FAMILY_V4
	if f.gateway.Is6() {
		kind = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: kind, State: netlink.NUD_PERMANENT, IP: f.gateway.AsSlice(),
		HardwareAddr: n.hostMAC.HardwareAddr()}
}

// configure sets addresses, routes and neighbours of the pod's end of a link, and sets it up.
func (pod *podHandle) configure(name string, index int, n network) error {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	for _, f := range n.families {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(f.addr.AsSlice())}
		if f.addr.Is6() {
			addr.Flags = unix.IFA_F_NODAD // duplicates are impossible, and duplicate address detection would take a second
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
