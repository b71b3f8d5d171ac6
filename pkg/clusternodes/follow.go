package clusternodes

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Follower keeps the rows of the table nodes and their index as of a snapshot. The cost of a change of one node depends on its addresses and ranges, not on the
// number of nodes. Only one goroutine may use it; other goroutines may query the index between two calls of [Follower.UpTo].
type Follower struct {
	*Index
	*Rows
}

// Follow returns a follower without nodes; the first [Follower.UpTo] adds all existing nodes. The transaction must hold the lock of the table.
func Follow(txn statedb.WriteTxn, table statedb.Table[*nodes.Node]) (*Follower, error) {
	rows, err := FollowRows(txn, table)
	if err != nil {
		return nil, err
	}
	return &Follower{&Index{}, rows}, nil
}

// UpTo applies the changes up to a snapshot, and adds a channel to changed that closes when there are more. It calls do for each changed row, before it updates
// the index for the row; before is nil for an added row, after for a deleted one.
func (f *Follower) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet, do func(before, after *nodes.Node)) {
	f.Rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		do(before, after)
		f.Replace(before, after)
	})
}

// Close ends the subscription. It has no effect on a nil follower.
func (f *Follower) Close() {
	if f != nil {
		f.Rows.Close()
	}
}

// Unresolved returns the name of a node that has no row in the table nodes, or a row that was computed without its Node or its CiliumNode; "" when there is no
// such node. It reads all nodes, so it is only for the start of the agent.
func Unresolved(txn statedb.ReadTxn, objects statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node], table statedb.Table[*nodes.Node]) string {
	for n := range objects.All(txn) {
		if row, _, found := table.Get(txn, nodes.ByName(n.Name)); !found || row.UID != n.UID {
			return n.Name
		}
	}
	for n := range ciliumNodes.All(txn) {
		if row, _, found := table.Get(txn, nodes.ByName(n.Name)); !found || row.Source != nodes.CiliumNode && row.Source != nodes.Local {
			return n.Name
		}
	}
	return ""
}

// Rows keeps the rows of the table nodes as of a snapshot, so that a reader of a change has the previous row. Only one goroutine may use it.
type Rows struct {
	table   statedb.Table[*nodes.Node]
	changes *changefeed.Feed[*nodes.Node]
	all     map[string]*nodes.Node
}

// FollowRows returns an empty Rows; the first [Rows.UpTo] adds all existing rows. The transaction must hold the lock of the table.
func FollowRows(txn statedb.WriteTxn, table statedb.Table[*nodes.Node]) (*Rows, error) {
	feed, err := changefeed.Follow(txn, table)
	if err != nil {
		return nil, err
	}
	return &Rows{table, feed, map[string]*nodes.Node{}}, nil
}

// UpTo applies the changes up to a snapshot, and adds a channel to changed that closes when there are more. It calls do for each changed row; before is nil for
// an added row, after for a deleted one.
func (r *Rows) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet, do func(before, after *nodes.Node)) {
	for _, change := range r.changes.UpTo(txn, changed) {
		name := change.Object.Name
		before := r.all[name]
		after, _, _ := r.table.Get(txn, nodes.ByName(name))
		if before == after {
			continue // added and deleted between two snapshots
		}
		if r.all[name] = after; after == nil {
			delete(r.all, name)
		}
		do(before, after)
	}
}

// All returns the rows by the name of the node. The caller must not change the map.
func (r *Rows) All() map[string]*nodes.Node { return r.all }

// Close ends the subscription. It has no effect on nil.
func (r *Rows) Close() {
	if r != nil {
		r.changes.Close()
	}
}
