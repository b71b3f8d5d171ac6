package inventory

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// podLinks finds the host ends of pod links, including links that wait for deletion or were never completed.
func (m *Machine) podLinks() (found []Object, err error) {
	links, err := m.links()
	for _, l := range links {
		if !isPodLink(l) {
			continue
		}
		a := l.Attrs()
		o := Object{Name: a.Name, Owner: "plugin waggle-cni", Proof: "name, type veth, link group " + fmt.Sprintf("%#x", a.Group),
			remove: func() error { return m.deleteLink(a.Name, isPodLink) }}
		switch {
		case a.Group == podlink.DeletedGroup:
			o.Note = "pending deletion"
		case a.RawFlags&unix.IFF_UP == 0:
			o.Note = "incomplete attachment" // the agent sets the link up in its last step
		default:
			o.Note, o.pod = "a pod's", true
		}
		found = append(found, o)
	}
	return found, err
}

func isPodLink(l netlink.Link) bool {
	a := l.Attrs()
	return l.Type() == "veth" && podlink.IsHostName(a.Name) && (a.Group == podlink.Group || a.Group == podlink.DeletedGroup)
}

// pairs finds the veth pairs of the node itself. Both ends must exist under their names: a single one is foreign.
func (m *Machine) pairs() (found []Object, err error) {
	links, err := m.links()
	if err != nil {
		return nil, err
	}
	for _, p := range ourPairs(links) {
		own := func(l netlink.Link) bool { return l.Attrs().Index == p[0].Attrs().Index }
		for i, end := range p {
			o := Object{Name: end.Attrs().Name, Owner: ownerOf(p), Proof: "both names on one veth pair", Note: "other end is " + p[1-i].Attrs().Name}
			if i == 0 {
				o.remove = func() error { return m.deleteLink(p[0].Attrs().Name, own) }
			}
			found = append(found, o)
		}
	}
	return found, nil
}

// ownerOf returns the cell that creates a pair.
func ownerOf(pair [2]netlink.Link) string {
	if pair[0].Attrs().Name == podlink.ChecksumDevice {
		return "cell overlay"
	}
	return "cell basedevices"
}

func ourPairs(links []netlink.Link) (pairs [][2]netlink.Link) {
	byName := make(map[string]netlink.Link, len(links))
	for _, l := range links {
		byName[l.Attrs().Name] = l
	}
	for _, names := range [][2]string{{podlink.HostDevice, podlink.NetDevice}, {podlink.HoldDevice, podlink.HoldPeer}, {podlink.ChecksumDevice, podlink.ChecksumPeer}} {
		a, b := byName[names[0]], byName[names[1]]
		if a != nil && b != nil && a.Type() == "veth" && b.Type() == "veth" &&
			a.Attrs().ParentIndex == b.Attrs().Index && b.Attrs().ParentIndex == a.Attrs().Index {
			pairs = append(pairs, [2]netlink.Link{a, b})
		}
	}
	return pairs
}

// tunnel finds the tunnel device to other nodes.
func (m *Machine) tunnel() (found []Object, err error) {
	links, err := m.links()
	for _, l := range links {
		if isTunnel(l) {
			name := l.Attrs().Name
			found = append(found, Object{Name: name, Owner: "cell overlay", Proof: "name, type vxlan with metadata, link group " + fmt.Sprintf("%#x", l.Attrs().Group),
				remove: func() error { return m.deleteLink(name, isTunnel) }})
		}
	}
	return found, err
}

func isTunnel(l netlink.Link) bool {
	v, ok := l.(*netlink.Vxlan)
	return ok && v.FlowBased && v.Name == podlink.OverlayDevice && v.Attrs().Group == podlink.OverlayGroup
}

// ours returns all links of Waggle by index.
func (m *Machine) ours() (map[int]netlink.Link, error) {
	links, err := m.links()
	if err != nil {
		return nil, err
	}
	ours := map[int]netlink.Link{}
	for _, l := range links {
		if isPodLink(l) || isTunnel(l) {
			ours[l.Attrs().Index] = l
		}
	}
	for _, p := range ourPairs(links) {
		ours[p[0].Attrs().Index], ours[p[1].Attrs().Index] = p[0], p[1]
	}
	return ours, nil
}

// deleteLink deletes a link if still confirms its ownership.
func (m *Machine) deleteLink(name string, still func(netlink.Link) bool) error {
	l, err := m.netlink.LinkByName(name)
	if err == nil && (l.Attrs().Name != name || !still(l)) {
		return nil
	}
	if err == nil {
		err = m.netlink.LinkDel(l)
	}
	if err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

// addresses finds the router addresses. They are removed with their link.
func (m *Machine) addresses() (found []Object, err error) {
	links, err := m.links()
	if err != nil {
		return nil, err
	}
	for _, p := range ourPairs(links) {
		if p[0].Attrs().Name != podlink.HostDevice {
			continue
		}
		addrs, err := m.netlink.AddressesOf(p[0])
		if err != nil {
			return found, err
		}
		for _, a := range addrs {
			if a.Scope >= unix.RT_SCOPE_LINK { // added by the kernel
				continue
			}
			ip, _ := netip.AddrFromSlice(a.IP)
			ones, _ := a.Mask.Size()
			found = append(found, Object{Name: netip.PrefixFrom(ip.Unmap(), ones).String(), Owner: "cell basedevices",
				Proof: "on " + podlink.HostDevice, Note: "removed with its link"})
		}
	}
	return found, nil
}
