package nodemaps

import (
	"context"
	"errors"
	"fmt"
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
	health.OK(fmt.Sprintf("the stack forwards packets between pods of different nodes: %v", why))
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
			health.OK("waiting for the address of this node in the underlay")
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
