package deviceobserver

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// toChange translates one event; ok is false for objects that are not mirrored.
func toChange(e rtnl.Event) (c change, ok bool) {
	switch {
	case e.Link != nil:
		// A bridge announces its ports in messages of its own family, which have few attributes and do not mean the deletion of the link.
		if e.Link.IfInfomsg.Family != unix.AF_UNSPEC {
			return change{}, false
		}
		return change{device: deviceRow(e.Link.Link), gone: e.Link.Header.Type == unix.RTM_DELLINK}, true
	case e.Addr != nil:
		a := addressRow(netlink.Addr{IPNet: &e.Addr.LinkAddress, Flags: e.Addr.Flags, Scope: e.Addr.Scope, LinkIndex: e.Addr.LinkIndex})
		return change{address: &a, gone: !e.Addr.NewAddr}, true
	case e.Route != nil:
		if e.Route.Flags&unix.RTM_F_CLONED != 0 {
			return change{}, false
		}
		return change{route: routeRows(e.Route.Route), gone: e.Route.Type == unix.RTM_DELROUTE,
			replacing: e.Route.NlFlags&unix.NLM_F_REPLACE != 0}, true
	case e.Neigh != nil:
		n, ok := neighborRow(e.Neigh.Neigh)
		return change{neighbor: &n, gone: e.Neigh.Type == unix.RTM_DELNEIGH}, ok
	}
	return change{}, false
}

// withoutLinkHeader holds the link types whose packets begin with their IP header (dev_is_mac_header_xmit in include/linux/if_arp.h), by their names in the
// package netlink. Types 519 (raw IP, of modems) and 823 (GRE over IPv6) have no name there.
var withoutLinkHeader = map[string]bool{"none": true, "ipip": true, "tunnel6": true, "sit": true, "gre": true, "ppp": true, "unknown519": true, "unknown823": true}

func deviceRow(l netlink.Link) *devices.Device {
	a := l.Attrs()
	hw, _ := mac.FromHardwareAddr(a.HardwareAddr) // a tunnel address has another length and is not a MAC address
	return &devices.Device{Index: a.Index, Name: a.Name, Type: l.Type(), MTU: a.MTU, MAC: hw, L3: withoutLinkHeader[a.EncapType], Flags: a.RawFlags,
		Up: a.RawFlags&unix.IFF_UP != 0, Group: a.Group, MasterIndex: a.MasterIndex, ParentIndex: a.ParentIndex}
}

func addressRow(a netlink.Addr) devices.Address {
	ones, _ := a.Mask.Size()
	addr := ip(a.IP)
	row := devices.Address{LinkIndex: a.LinkIndex, Prefix: netip.PrefixFrom(addr, ones), Scope: uint8(a.Scope),
		Tentative: a.Flags&unix.IFA_F_TENTATIVE != 0, Duplicate: a.Flags&unix.IFA_F_DADFAILED != 0}
	// In IPv6 the same bit means "temporary" (RFC 8981); such an address is not secondary.
	row.Secondary = addr.Is4() && a.Flags&unix.IFA_F_SECONDARY != 0
	row.Fleeting = addr.Is6() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) != 0
	return row
}

func routeRows(r netlink.Route) []*devices.Route {
	row := devices.Route{Table: r.Table, Dst: destination(r), Priority: r.Priority, LinkIndex: r.LinkIndex, Gw: ip(r.Gw),
		Src: ip(r.Src), Scope: uint8(r.Scope), Type: uint8(r.Type), Protocol: uint8(r.Protocol), MTU: r.MTU}
	if via, ok := r.Via.(*netlink.Via); ok {
		row.Gw = ip(via.Addr)
	}
	if len(r.MultiPath) == 0 {
		return []*devices.Route{&row}
	}
	rows := make([]*devices.Route, len(r.MultiPath))
	for i, hop := range r.MultiPath {
		c := row
		c.LinkIndex, c.Gw = hop.LinkIndex, ip(hop.Gw)
		rows[i] = &c
	}
	return rows
}

// destination returns the route's prefix; the default route has the prefix of length zero.
func destination(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		if r.Family == netlink.FAMILY_V6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(ip(r.Dst.IP), ones)
}

// neighborRow skips multicast addresses, which are computed and not neighbours, and bridge entries without an address.
func neighborRow(n netlink.Neigh) (devices.Neighbor, bool) {
	addr := ip(n.IP)
	if !addr.IsValid() || addr.IsMulticast() {
		return devices.Neighbor{}, false
	}
	hw, _ := mac.FromHardwareAddr(n.HardwareAddr)
	return devices.Neighbor{LinkIndex: n.LinkIndex, Addr: addr, MAC: hw, State: uint16(n.State), Flags: uint8(n.Flags)}, true
}

// ip converts an address; nil becomes the zero value. An IPv4-mapped address becomes an IPv4 address, because netlink uses 16 bytes
// for IPv4 as well.
func ip(b net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}
