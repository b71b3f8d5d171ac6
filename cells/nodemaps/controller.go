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
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	agent "github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// settle is the minimum interval between two rounds. A single change is not delayed.
const settle = 20 * time.Millisecond

type controller struct {
	cell.In
	DB       *statedb.DB
	Agent    agent.Agent
	Table    statedb.RWTable[*nodeslots.Slot]
	Nodes    statedb.Table[*nodes.Node]
	IDs      statedb.Table[*nodeids.NodeID]
	Overlays statedb.Table[*overlays.Overlay]
	Tests    statedb.Table[*pathtests.Test]
	Paths    statedb.Table[*nodepaths.Path]
	Probe    bpf.EncapProbe
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	initialized := c.Table.RegisterInitializer(txn, "node-maps")
	txn.Commit()
	heartbeat.AddRetried(jobs, "want-node-slots", func(ctx context.Context, health cell.Health) error {
		if why := c.Probe().Stack; why != nil && !c.Agent.Tunnel() {
			return c.disable(ctx, health, why, initialized)
		}
		return c.run(ctx, health, initialized)
	}, 100*time.Millisecond, time.Minute)
}

// disable requests nothing, so that the reconciler empties the maps.
func (c *controller) disable(ctx context.Context, health cell.Health, why error, initialized func(statedb.WriteTxn)) error {
	if err := c.commit(nil, true, initialized); err != nil {
		return err
	}
	health.OK(fmt.Sprintf("The stack forwards what pods of different nodes exchange: %v", why))
	heartbeat.Idle(ctx) // nothing is left to do
	<-ctx.Done()
	return nil
}

func (c *controller) run(ctx context.Context, health cell.Health, initialized func(statedb.WriteTxn)) error {
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Nodes, c.IDs, c.Overlays)
		changed := statedb.NewWatchSet()
		complete := changes.Watch(txn, changed, c.Nodes, c.IDs, c.Overlays)
		carried, carriedChanged := pathtests.Carried(txn, c.Tests) // they need not be complete: nothing is known of a path until it is tested
		direct, directChanged := nodepaths.Directs(txn, c.Paths)   // likewise
		changed.Add(carriedChanged, directChanged)
		if !c.Agent.Tunnel() {
			rows := c.direct(txn)
			if err := c.commit(rows, complete, initialized); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d nodes, programs forward what their pods and those of this node exchange", len(rows)))
		} else if self, found := c.self(txn); found {
			rows := c.desired(txn, self, known{carried, direct, complete})
			if err := c.commit(rows, complete, initialized); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d nodes", len(rows)))
		} else {
			if complete { // the node has none, and its own pods need no other node
				if err := c.commit(nil, true, initialized); err != nil {
					return err
				}
			}
			health.OK("Waiting for the address of this node in the underlay")
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			return nil // stopping
		}
	}
	return nil
}

// self returns the row of this node. Without the source of outer headers there is none, and no other row either.
func (c *controller) self(txn statedb.ReadTxn) (*nodeslots.Slot, bool) {
	for row := range c.Overlays.All(txn) {
		if row.Source.IsValid() {
			self := &nodeslots.Slot{ID: bpf.NodeThis, Node: c.Agent.NodeName, Source: row.Source, Addrs: []netip.Addr{row.Source}}
			if row.Second.IsValid() {
				self.Addrs = append(self.Addrs, row.Second)
			}
			return self, true
		}
	}
	return nil, false
}

// direct returns the rows of the nodes with an id to whose pods routes lead.
func (c *controller) direct(txn statedb.ReadTxn) (rows []*nodeslots.Slot) {
	for id := range c.IDs.All(txn) {
		n, _, found := c.Nodes.Get(txn, nodes.ByName(id.Name))
		if found && id.Released.IsZero() && n.Source != nodes.Local {
			rows = append(rows, &nodeslots.Slot{ID: id.ID, Node: id.Name, Direct: true})
		}
	}
	return rows
}

// known is what is known of the paths to the nodes.
type known struct {
	carried  map[string]int  // sizes of packets that paths carry, in bytes, by node; none where they carry all
	direct   map[string]bool // nodes that are reached past the tunnel
	complete bool            // the tables of nodes, ids and tunnels are
}

// desired returns the rows of all nodes with an id. Before the tables are complete, nodes without an address are left out: it may be in an object that is
// still to come, and the maps have it from the previous run.
func (c *controller) desired(txn statedb.ReadTxn, self *nodeslots.Slot, k known) []*nodeslots.Slot {
	rows := []*nodeslots.Slot{self}
	for id := range c.IDs.All(txn) {
		n, _, found := c.Nodes.Get(txn, nodes.ByName(id.Name))
		if !found || !id.Released.IsZero() || n.Source == nodes.Local {
			continue
		}
		row := &nodeslots.Slot{ID: id.ID, Node: id.Name, MTU: uint16(min(k.carried[id.Name], math.MaxUint16))}
		for _, ipv6 := range []bool{false, true} {
			// An address of this node is no address of another one, whatever objects say.
			if addr := n.Address(ipv6); addr.IsValid() && c.enabled(ipv6) && !slices.Contains(self.Addrs, addr) {
				row.Addrs = append(row.Addrs, addr)
				if addr.Is6() == self.Source.Is6() {
					row.Underlay, row.Source = addr, self.Source
				}
			}
		}
		row.Direct = row.Underlay.IsValid() && k.direct[id.Name]
		if k.complete || row.Underlay.IsValid() {
			rows = append(rows, row)
		}
	}
	return rows
}

// enabled reports whether pods have addresses of a family. Of the other one nobody keeps pods from claiming to be a node.
func (c *controller) enabled(ipv6 bool) bool {
	if ipv6 {
		return c.Agent.EnableIPv6
	}
	return c.Agent.EnableIPv4
}

// commit makes want the rows of the table. Rows that are equal stay as they are.
func (c *controller) commit(want []*nodeslots.Slot, complete bool, initialized func(statedb.WriteTxn)) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	wanted := make(map[uint16]bool, len(want))
	var errs []error
	for _, row := range want {
		wanted[row.ID] = true
		if old, _, found := c.Table.Get(txn, nodeslots.ByID(row.ID)); !found || !old.Equal(row) {
			_, _, err := c.Table.Insert(txn, row.WithStatus(reconciler.StatusPending()))
			errs = append(errs, err)
		}
	}
	for old := range c.Table.All(txn) {
		if !wanted[old.ID] {
			_, _, err := c.Table.Delete(txn, old)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write node-slots: %w", err)
	}
	if complete {
		initialized(txn)
	}
	txn.Commit()
	return nil
}
