package nodeaddressfinder

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// candidate is an address of the node with the properties that determine its rank.
type candidate struct {
	nodeaddresses.Address
	device    *devices.Device
	kubelet   bool // the status of the Node has the address
	secondary bool
	fleeting  bool
}

// ours are devices of the agent whose addresses are not addresses of the node.
var ours = []string{podlink.NetDevice, podlink.HoldDevice, podlink.HoldPeer, podlink.ChecksumDevice, podlink.ChecksumPeer}

func belongs(d *devices.Device) bool {
	return !strings.HasPrefix(d.Name, podlink.Prefix) && !slices.Contains(ours, d.Name)
}

// compute returns the addresses of the node. link looks a device up by index; it is not called for addresses that are left out by their own properties, such as
// the link-local address of each pod link. named are the addresses in the status of the Node.
func compute(r rules, link func(index int) *devices.Device, addrs iter.Seq[devices.Address], named []netip.Addr) []nodeaddresses.Address {
	var all []candidate
	for a := range addrs {
		if a.Scope > r.maxScope || a.Tentative || !r.enabled(a.Addr()) || a.Addr().IsLoopback() {
			continue
		}
		d := link(a.LinkIndex)
		// An address may be in the table before or after its device; a change of the devices causes another round.
		if d == nil || !belongs(d) {
			continue
		}
		all = append(all, candidate{nodeaddresses.Address{Addr: a.Addr(), Device: d.Name, Scope: a.Scope}, d, slices.Contains(named, a.Addr()),
			a.Secondary, a.Fleeting})
	}
	slices.SortFunc(all, rank)
	sources(all)
	nodePorts(r, all)
	primaries(all)
	rows := make([]nodeaddresses.Address, len(all))
	for i, c := range all {
		rows[i] = c.Address
	}
	return rows
}

// rank sorts the preferred address first. The criteria in order: in the status of the Node, on an external device, not fleeting (temporary or deprecated), not
// secondary, public, wider scope, lower device index; the address makes the order total.
func rank(a, b candidate) int {
	return cmp.Or(
		first(a.kubelet, b.kubelet), // on any device, such as a bridge: other nodes send packets to this address
		first(a.device.Selected, b.device.Selected),
		first(!a.fleeting, !b.fleeting),
		first(!a.secondary, !b.secondary),
		first(public(a.Addr), public(b.Addr)),
		cmp.Compare(a.Scope, b.Scope),
		cmp.Compare(a.device.Index, b.device.Index),
		a.Addr.Compare(b.Addr),
	)
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func public(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.IsPrivate() }

// sources marks the best address of each external device and family.
func sources(ranked []candidate) {
	type slot struct {
		device string
		ipv4   bool
	}
	taken := make(map[slot]bool)
	for i := range ranked {
		c := &ranked[i]
		if s := (slot{c.Device, c.Addr.Is4()}); c.device.Selected && !taken[s] {
			c.Source, taken[s] = true, true
		}
	}
}

// nodePorts marks the addresses on external devices that serve NodePort services: the addresses in --nodeport-addresses, or by default the best address of each
// device and family.
func nodePorts(r rules, ranked []candidate) {
	for i := range ranked {
		c := &ranked[i]
		c.NodePort = c.Source
		if len(r.nodePort) > 0 {
			c.NodePort = c.device.Selected && r.serves(c.Addr)
		}
	}
}

// primaries marks the node's address of each family: the best one that is not on the device of the pods' gateway.
func primaries(ranked []candidate) {
	found := make(map[bool]bool)
	for i := range ranked {
		c := &ranked[i]
		if c.Device == podlink.HostDevice || found[c.Addr.Is4()] {
			continue
		}
		c.Primary, found[c.Addr.Is4()] = true, true
	}
}
