package nodemaps

import (
	"math"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
)

// checksums returns the ifindex of the device that completes the checksums of packets to a node, 0 for none.
func (c *controller) checksums(id uint16, name string) uint32 {
	left, untested := c.completed[id]
	switch {
	case !untested && !c.known.corrupted[name]:
		return 0
	case untested && !c.known.device.known:
		return left
	}
	return c.known.device.index
}

// slot returns the row of an id, nil when there is none. Before the tables are complete, a node without an address has no row: an object that contains the
// address may still arrive. Until then objects may come from a copy on disk, which is older than the maps: a node that has an address in the maps keeps it.
// Without a tunnel the row says that routes lead to the pods of the node.
func (c *controller) slot(txn statedb.ReadTxn, id uint16) *nodeslots.Slot {
	self := c.known.self
	switch {
	case c.Agent.Tunnel() && self == nil:
		return nil
	case id == bpf.NodeThis:
		return self
	}
	of, _, found := c.IDs.Get(txn, nodeids.ByID(id))
	if found && !of.Released.IsZero() {
		c.routing.forget(id)
	}
	if !found || !of.Released.IsZero() {
		return nil
	}
	n, _, found := c.Nodes.Get(txn, nodes.ByName(of.Name))
	if !found || n.Source == nodes.Local {
		return nil
	}
	row := &nodeslots.Slot{ID: id, Node: n.Name, MTU: uint16(min(c.known.carried[n.Name], math.MaxUint16))}
	if !c.Agent.Tunnel() {
		row.Direct = true
		return row
	}
	for _, ipv6 := range []bool{false, true} {
		// An address of this node never belongs to another one, independently of the objects.
		if addr := c.before.address(id, n, ipv6); addr.IsValid() && c.enabled(ipv6) && !slices.Contains(self.Addrs, addr) {
			row.Addrs = append(row.Addrs, addr)
			if addr.Is6() == self.Source.Is6() {
				row.Underlay, row.Source, row.Checksums = addr, self.Source, c.checksums(id, n.Name)
			}
		}
	}
	if !row.Underlay.IsValid() && !c.known.complete {
		return nil
	}
	row.Direct, row.Routed = c.routing.decide(id, c.Agent, c.known.receives, n.Receives, c.known.complete)
	if path, _, tested := c.Paths.Get(txn, nodepaths.ByNode(n.Name)); tested && row.Underlay.IsValid() && path.Mode == nodepaths.Direct {
		row.Direct = row.Direct || n.Receives.AcceptsDirect() && c.known.receives.AcceptsDirect()
	}
	return row
}

// enabled reports whether pods have addresses of a family. In a disabled family nothing prevents pods from using the address of a node.
func (c *controller) enabled(ipv6 bool) bool {
	if ipv6 {
		return c.Agent.EnableIPv6
	}
	return c.Agent.EnableIPv4
}
