package ipcache

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	nodetable "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// nodes finds what the maps say of the node of a row. Rows name nodes: a row is written without its node while that has no id, and again when it has one.
type nodes struct {
	cell.In

	IDs   statedb.Table[*nodeids.NodeID]
	Nodes statedb.Table[*nodetable.Node]
}

// value returns the entry of a row in whose place the map has the entry have. Until all ids are known, the id of a node of which none is known is the one
// that the previous run wrote.
func (n nodes) value(txn statedb.ReadTxn, e *ipcachetable.Entry, have value) value {
	v := value{Identity: e.Identity}
	if e.Node == "" {
		return v
	}
	v.Node = n.id(txn, e.Node)
	if complete, _ := n.IDs.Initialized(txn); v.Node == 0 && !complete && have.Identity == e.Identity {
		v.Node = have.Node
	}
	return v
}

// id returns 0 for a node without an id, and for one that was removed: its id may soon be that of another node.
func (n nodes) id(txn statedb.ReadTxn, name string) uint16 {
	row, _, found := n.IDs.Get(txn, nodeids.ByName(name))
	if !found || !row.Released.IsZero() {
		return 0
	}
	return row.ID
}

// peer returns the IPv4 address by which programs of the release before know the node of a row. For pods it is invalid: those programs take the node of the
// range around them.
func (n nodes) peer(txn statedb.ReadTxn, e *ipcachetable.Entry) netip.Addr {
	if e.Node == "" || e.Owner == ipcachetable.OwnerCiliumEndpoints {
		return netip.Addr{}
	}
	return n.address(txn, e.Node)
}

func (n nodes) address(txn statedb.ReadTxn, name string) netip.Addr {
	node, _, found := n.Nodes.Get(txn, nodetable.ByName(name))
	if !found {
		return netip.Addr{}
	}
	return node.Address(false)
}

// follower marks rows pending whose node has got another id or address since they were written.
type follower struct {
	nodes
	db    *statedb.DB
	table statedb.RWTable[*ipcachetable.Entry]
}

func registerFollower(jobs job.Group, db *statedb.DB, table statedb.RWTable[*ipcachetable.Entry], n nodes) {
	f := follower{n, db, table}
	heartbeat.AddRetried(jobs, "follow-nodes", f.run, minRetry, maxRetry)
}

// known is what rows of one node depend on.
type known struct {
	id   uint16
	addr netip.Addr
}

// run marks all rows with a node in its first round: some may have been written before.
func (f follower) run(ctx context.Context, health cell.Health) error {
	before, wasComplete := map[string]known{}, false
	for {
		txn := heartbeat.Snapshot(ctx, f.db, f.IDs, f.Nodes)
		changed := statedb.NewWatchSet()
		changes.Watch(txn, changed, f.IDs, f.Nodes)
		complete, _ := f.IDs.Initialized(txn)
		now := map[string]known{}
		for row := range f.IDs.All(txn) {
			now[row.Name] = known{f.id(txn, row.Name), f.address(txn, row.Name)}
		}
		if err := f.mark(before, now, complete && !wasComplete); err != nil {
			return err
		}
		before, wasComplete = now, complete
		health.OK(fmt.Sprintf("%d nodes with an id", len(now)))
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, settle); err != nil {
			return nil // stopping
		}
	}
}

// mark makes rows pending whose node is not known as before. What pods have of their node is its id alone. With completed set, rows whose node has no id lose
// the one of the previous run.
func (f follower) mark(before, now map[string]known, completed bool) error {
	differs := map[string]bool{} // by name: whether it is the id
	for name, n := range now {
		if n != before[name] {
			differs[name] = n.id != before[name].id
		}
	}
	for name, n := range before {
		if _, found := now[name]; !found {
			differs[name] = n.id != 0
		}
	}
	if len(differs) == 0 && !completed {
		return nil
	}
	txn := f.db.WriteTxn(f.table)
	defer txn.Abort()
	for e := range f.table.All(txn) {
		id, found := differs[e.Node]
		lost := completed && e.Node != "" && now[e.Node].id == 0
		if !lost && (!found || !id && e.Owner == ipcachetable.OwnerCiliumEndpoints) {
			continue
		}
		if _, _, err := f.table.Insert(txn, e.Clone().WithStatus(reconciler.StatusPending())); err != nil {
			return fmt.Errorf("mark %s: %w", e.Prefix, err)
		}
	}
	txn.Commit()
	return nil
}
