package clusternodes

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Follower keeps the rows of the table nodes and their index as of a snapshot. A change of one node costs as much as that node has addresses and ranges, however
// many nodes there are. It is for one goroutine; others may query the index between two calls of [Follower.UpTo].
type Follower struct {
	*Index
	*Rows
}

// Follow begins without nodes: the first [Follower.UpTo] adds all that exist. The transaction has to hold the table.
func Follow(txn statedb.WriteTxn, table statedb.Table[*tables.Node]) (*Follower, error) {
	rows, err := FollowRows(txn, table)
	if err != nil {
		return nil, err
	}
	return &Follower{&Index{}, rows}, nil
}

// UpTo takes over what has changed up to a snapshot, and adds to changed what closes when more has. It calls do for each row that is another one than before,
// with the index as it was; one of both is nil when the row was added or deleted.
func (f *Follower) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet, do func(before, after *tables.Node)) {
	f.Rows.UpTo(txn, changed, func(before, after *tables.Node) {
		do(before, after)
		f.Replace(before, after)
	})
}

// Close ends the subscription. That of nobody ends as well.
func (f *Follower) Close() {
	if f != nil {
		f.Rows.Close()
	}
}

// Unresolved names a node whose row of the table nodes was made without its Node or its CiliumNode, or not at all; "" when there is none. It reads all nodes: it is for
// starts.
func Unresolved(txn statedb.ReadTxn, objects statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node], table statedb.Table[*tables.Node]) string {
	for n := range objects.All(txn) {
		if row, _, found := table.Get(txn, tables.ByName(n.Name)); !found || row.UID != n.UID {
			return n.Name
		}
	}
	for n := range ciliumNodes.All(txn) {
		if row, _, found := table.Get(txn, tables.ByName(n.Name)); !found || row.Source != tables.CiliumNode && row.Source != tables.Local {
			return n.Name
		}
	}
	return ""
}

// Rows keeps the rows of the table nodes as of a snapshot, so that a reader of a change knows what the row was. It is for one goroutine.
type Rows struct {
	table   statedb.Table[*tables.Node]
	changes *changes.Feed[*tables.Node]
	all     map[string]*tables.Node
}

// FollowRows begins without rows: the first [Rows.UpTo] adds all that exist. The transaction has to hold the table.
func FollowRows(txn statedb.WriteTxn, table statedb.Table[*tables.Node]) (*Rows, error) {
	feed, err := changes.Follow(txn, table)
	if err != nil {
		return nil, err
	}
	return &Rows{table, feed, map[string]*tables.Node{}}, nil
}

// UpTo takes over what has changed up to a snapshot, and adds to changed what closes when more has. It calls do for each row that is another one than before; one
// of both is nil when the row was added or deleted.
func (r *Rows) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet, do func(before, after *tables.Node)) {
	for _, change := range r.changes.UpTo(txn, changed) {
		name := change.Object.Name
		before := r.all[name]
		after, _, _ := r.table.Get(txn, tables.ByName(name))
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
func (r *Rows) All() map[string]*tables.Node { return r.all }

// Close ends the subscription. That of nobody ends as well.
func (r *Rows) Close() {
	if r != nil {
		r.changes.Close()
	}
}
