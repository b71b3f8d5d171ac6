package nodemaps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// left has the addresses of other nodes that the previous run left in the maps.
type left struct {
	addrs  map[uint16][]netip.Addr
	owners map[netip.Addr]uint16
}

// readLeft reads the state of the previous run before this run writes the maps.
func (c *controller) readLeft() error {
	if !c.Agent.Tunnel() || c.completed != nil {
		return nil
	}
	states, err := c.Kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the addresses of the previous run: %w", err)
	}
	c.before = left{map[uint16][]netip.Addr{}, map[netip.Addr]uint16{}}
	c.completed = map[uint16]uint32{}
	if m, _, found := c.Maps.Get(c.DB.ReadTxn(), bpfmaps.ByName(bpf.MapNodeAddrs)); found && m.Reused {
		c.routing.restore(states)
	}
	for id, s := range states {
		if s.slot.Ifindex != 0 {
			c.completed[id] = s.slot.Ifindex
		}
		c.before.addrs[id] = s.addrs
		for _, addr := range s.addrs {
			c.before.owners[addr] = id
		}
	}
	return nil
}

// address returns the address of a node in a family, from the previous run or otherwise from its objects.
func (l left) address(id uint16, n *nodes.Node, ipv6 bool) netip.Addr {
	for _, addr := range l.addrs[id] {
		if addr.Is6() == ipv6 {
			return addr
		}
	}
	addr := n.Address(ipv6)
	if owner, found := l.owners[addr]; found && owner != bpf.NodeThis {
		return netip.Addr{} // another node owns the address
	}
	return addr
}

// forget drops the checksum devices of the previous run for nodes that have been tested since, or are not tested.
func (c *controller) forget(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	if len(c.completed) == 0 {
		return
	}
	all, initialized := c.Tests.Initialized(txn)
	if !all {
		changed.Add(initialized)
	}
	for id := range c.completed {
		of, _, idChanged, named := c.IDs.GetWatch(txn, nodeids.ByID(id))
		changed.Add(idChanged)
		if !named {
			continue
		}
		test, _, testChanged, found := c.Tests.GetWatch(txn, pathtests.ByTest(of.Name, pathtests.Checksum))
		changed.Add(testChanged)
		if found && test.State != pathtests.Unknown || !found && all {
			delete(c.completed, id)
			c.touched[id] = struct{}{}
		}
	}
}
