package nodemaps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum interval between two rounds. A single change is not delayed.
const settle = 20 * time.Millisecond

type params struct {
	cell.In
	DB       *statedb.DB
	Agent    agentconfig.Agent
	Table    statedb.RWTable[*nodeslots.Slot]
	Nodes    statedb.Table[*nodes.Node]
	IDs      statedb.Table[*nodeids.NodeID]
	Overlays statedb.Table[*overlays.Overlay]
	Tests    statedb.Table[*pathtests.Test]
	Paths    statedb.Table[*nodepaths.Path]
	Devices  statedb.Table[*devices.Device]
	Maps     statedb.Table[*bpfmaps.Map]
	Probe    bpf.EncapProbe
	Kernel   kernel
}

// controller follows the changes of nodes. A round computes only the slots whose inputs have changed.
type controller struct {
	params
	initialized func(statedb.WriteTxn)
	nodes       *clusternodes.Rows
	ids         *changefeed.Feed[*nodeids.NodeID]
	paths       *changefeed.Feed[*nodepaths.Path]
	known       known
	before      left              // empty once the tables are complete
	completed   map[uint16]uint32 // checksum devices of the previous run, by ids of nodes without a checksum test since; nil before they are read
	routing     routing
	touched     map[uint16]struct{} // ids whose slots may have changed
}

// known is the state that applies to all nodes.
type known struct {
	self      *nodeslots.Slot // nil while this node has no address in the underlay
	receives  nodes.Receives  // value that this node has published
	carried   map[string]int  // maximum packet size that a path carries, in bytes, by node; no entry without a limit
	corrupted map[string]bool // nodes on whose paths checksums are corrupted
	device    completer
	complete  bool // the tables of nodes, ids and tunnels are complete
}

// completer is the device that completes checksums.
type completer struct {
	known bool
	index uint32 // ifindex; 0 while no device is up
}

func newController(p params) *controller {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Commit()
	return &controller{params: p, initialized: p.Table.RegisterInitializer(txn, "node-maps"), touched: map[uint16]struct{}{}, routing: newRouting()}
}

func registerController(jobs job.Group, p params) {
	c := newController(p)
	watchdog.AddRetried(jobs, "want-node-slots", func(ctx context.Context, health cell.Health) error {
		if why := c.Probe().Stack; why != nil && !c.Agent.Tunnel() {
			return c.disable(ctx, health, why)
		}
		return c.run(ctx, health)
	}, 100*time.Millisecond, time.Minute)
}

// disable requests no slots, so that the reconciler empties the maps.
func (c *controller) disable(ctx context.Context, health cell.Health, why error) error {
	if err := c.commit(nil, nil, true); err != nil {
		return err
	}
	health.OK(fmt.Sprintf("The stack forwards packets between pods of different nodes: %v", why))
	watchdog.Idle(ctx) // the job has nothing else to do
	<-ctx.Done()
	return nil
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := c.subscribe(); err != nil {
		return err
	}
	if err := c.readLeft(); err != nil {
		return err
	}
	err := loop.Run(ctx, c.DB, loop.Options{Tables: []statedb.TableMeta{c.Nodes, c.IDs, c.Overlays}, Pause: settle}, func(r *loop.Round) error {
		if err := c.round(r.Txn, r.Changed); err != nil {
			return err
		}
		rows := c.Table.NumObjects(c.DB.ReadTxn())
		switch {
		case !c.Agent.Tunnel():
			health.OK(fmt.Sprintf("%d nodes, programs forward packets between their pods and pods of this node", rows))
		case c.known.self == nil:
			health.OK("Waiting for the address of this node in the underlay")
		default:
			health.OK(fmt.Sprintf("%d nodes", rows))
		}
		return nil
	})
	if err == nil {
		c.close()
	}
	return err
}

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

// round writes the slots that have changed in a snapshot.
func (c *controller) round(txn statedb.ReadTxn, changed *statedb.WatchSet) error {
	c.follow(txn, changed)
	if c.Agent.Tunnel() && c.known.self == nil && !c.known.complete {
		return nil // the maps may have an address from the previous run
	}
	defer c.routing.watch(changed)
	var put []*nodeslots.Slot
	var remove []*nodeslots.Slot
	for id := range c.touched {
		want := c.slot(txn, id)
		have, _, found := c.Table.Get(txn, nodeslots.ByID(id)) // the table has no other writer
		switch {
		case want == nil && found:
			remove = append(remove, have)
		case want != nil && (!found || !have.Equal(want)):
			put = append(put, want)
		}
	}
	if err := c.commit(put, remove, c.known.complete); err != nil {
		return err
	}
	c.touched = map[uint16]struct{}{} // a map that has grown does not shrink
	return nil
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
		row.Direct = row.Direct || n.Receives.Direct || !n.Receives.Known
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

// commit writes and deletes rows.
func (c *controller) commit(put, remove []*nodeslots.Slot, complete bool) error {
	if done, _ := c.Table.Initialized(c.DB.ReadTxn()); len(put)+len(remove) == 0 && (done || !complete) {
		return nil
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	var errs []error
	for _, row := range remove {
		_, _, err := c.Table.Delete(txn, row)
		errs = append(errs, err)
	}
	for _, row := range put {
		_, _, err := c.Table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending()))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write node-slots: %w", err)
	}
	if complete {
		c.initialized(txn)
	}
	txn.Commit()
	return nil
}
