package nodemaps

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// subscribe follows the tables from their first row on; a retry continues where the previous attempt ended.
func (c *controller) subscribe() error {
	if c.nodes != nil {
		return nil
	}
	txn := c.DB.WriteTxn(c.Nodes, c.IDs, c.Paths)
	defer txn.Commit()
	var errs [3]error
	c.nodes, errs[0] = clusternodes.FollowRows(txn, c.Nodes)
	c.ids, errs[1] = changefeed.Follow(txn, c.IDs)
	c.paths, errs[2] = changefeed.Follow(txn, c.Paths)
	err := errors.Join(errs[:]...)
	if err != nil {
		c.close()
		c.nodes = nil
	}
	return err
}

func (c *controller) close() {
	c.nodes.Close()
	c.ids.Close()
	c.paths.Close()
}

// follow applies the changes of the tables, and touches the ids whose slots may have changed.
func (c *controller) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	complete := changefeed.Watch(txn, changed, c.Nodes, c.IDs, c.Overlays)
	c.nodes.UpTo(txn, changed, func(before, after *nodes.Node) {
		for _, n := range []*nodes.Node{before, after} {
			if n != nil {
				c.touch(txn, n.Name)
			}
		}
	})
	for _, change := range c.ids.UpTo(txn, changed) {
		c.touched[change.Object.ID] = struct{}{}
	}
	// The table of paths need not be complete: a path has no row until it is tested.
	for _, change := range c.paths.UpTo(txn, changed) {
		c.touch(txn, change.Object.Node)
	}
	carried, carriedChanged := pathtests.Carried(txn, c.Tests)
	changed.Add(carriedChanged)
	for _, sizes := range [][2]map[string]int{{c.known.carried, carried}, {carried, c.known.carried}} {
		for name, size := range sizes[0] {
			if sizes[1][name] != size {
				c.touch(txn, name)
			}
		}
	}
	c.routing.ended(func(id uint16) { c.touched[id] = struct{}{} })
	corrupted, corruptedChanged := pathtests.CorruptedPaths(txn, c.Tests)
	changed.Add(corruptedChanged)
	for _, names := range [][2]map[string]bool{{c.known.corrupted, corrupted}, {corrupted, c.known.corrupted}} {
		for name := range names[0] {
			if !names[1][name] {
				c.touch(txn, name)
			}
		}
	}
	c.forget(txn, changed)
	before := c.known
	c.known = known{c.self(txn), c.published(txn), carried, corrupted, c.completer(txn, changed), complete}
	if complete {
		c.before = left{}
	}
	if self := c.known.self; complete != before.complete || c.known.receives != before.receives || c.known.device != before.device || (self == nil) != (before.self == nil) || self != nil && !self.Equal(before.self) {
		c.touchAll(txn)
	}
}

// completer returns the device that completes checksums.
func (c *controller) completer(txn statedb.ReadTxn, changed *statedb.WatchSet) (d completer) {
	known, initialized := c.Devices.Initialized(txn)
	rows, more := c.Devices.ListWatch(txn, devices.ByName(podlink.ChecksumDevice))
	if changed.Add(more); !known {
		changed.Add(initialized)
	}
	d.known = known
	for row := range rows {
		if row.Up && row.Group == podlink.OverlayGroup {
			d.index = uint32(row.Index)
		}
	}
	return d
}

// touch touches the id of a node, if it has one.
func (c *controller) touch(txn statedb.ReadTxn, name string) {
	if row, _, found := c.IDs.Get(txn, nodeids.ByName(name)); found {
		c.touched[row.ID] = struct{}{}
	}
}

// touchAll touches all ids with or without a slot.
func (c *controller) touchAll(txn statedb.ReadTxn) {
	c.touched[bpf.NodeThis] = struct{}{}
	for row := range c.IDs.All(txn) {
		c.touched[row.ID] = struct{}{}
	}
	for row := range c.Table.All(txn) {
		c.touched[row.ID] = struct{}{}
	}
}

// self returns the row of this node, nil without a tunnel. With a tunnel but without a source of outer headers it is nil, and there is no other row either.
func (c *controller) self(txn statedb.ReadTxn) *nodeslots.Slot {
	if !c.Agent.Tunnel() {
		return nil
	}
	for row := range c.Overlays.All(txn) {
		if row.Source.IsValid() {
			self := &nodeslots.Slot{ID: bpf.NodeThis, Node: c.Agent.NodeName, Source: row.Source, Addrs: []netip.Addr{row.Source}}
			if row.Second.IsValid() {
				self.Addrs = append(self.Addrs, row.Second)
			}
			return self
		}
	}
	return nil
}

// published returns the encapsulations that this node has published to the other nodes.
func (c *controller) published(txn statedb.ReadTxn) nodes.Receives {
	if self, _, found := c.Nodes.Get(txn, nodes.ByName(c.Agent.NodeName)); found {
		return self.Receives
	}
	return nodes.Receives{}
}
