package clusternodes

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Follower keeps all nodes and their index as of a snapshot. A change of one node costs as much as that node has claims, however many nodes there are. It is for
// one goroutine; others may ask the index between two calls of [Follower.UpTo].
type Follower struct {
	*Index
	nodes             statedb.Table[*k8s.Node]
	ciliumNodes       statedb.Table[*cilium.Node]
	nodeChanges       *changes.Feed[*k8s.Node]
	ciliumNodeChanges *changes.Feed[*cilium.Node]
	all               map[string]Node
}

// Follow begins without nodes: the first [Follower.UpTo] adds all that exist. The transaction has to hold both tables.
func Follow(txn statedb.WriteTxn, nodes statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node]) (*Follower, error) {
	f := &Follower{Index: NewIndex(), nodes: nodes, ciliumNodes: ciliumNodes, all: map[string]Node{}}
	var err error
	if f.nodeChanges, err = changes.Follow(txn, nodes); err != nil {
		return nil, err
	}
	if f.ciliumNodeChanges, err = changes.Follow(txn, ciliumNodes); err != nil {
		f.nodeChanges.Close()
		return nil, err
	}
	return f, nil
}

// UpTo takes over what has changed up to a snapshot, and adds to changed what closes when more has. It calls do for each node that is another one than before,
// with the index as it was; one of both is the zero Node when the node was added or removed.
func (f *Follower) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet, do func(before, after Node)) {
	for _, change := range f.nodeChanges.UpTo(txn, changed) {
		f.follow(txn, change.Object.Name, do)
	}
	for _, change := range f.ciliumNodeChanges.UpTo(txn, changed) {
		f.follow(txn, change.Object.Name, do)
	}
}

func (f *Follower) follow(txn statedb.ReadTxn, name string, do func(before, after Node)) {
	before, after := f.all[name], ReadOne(txn, f.nodes, f.ciliumNodes, name)
	if before.Equal(after) {
		return
	}
	do(before, after)
	f.Replace(before, after)
	if f.all[name] = after; after.Name == "" {
		delete(f.all, name)
	}
}

// Node returns the node of a name, the zero Node when there is none.
func (f *Follower) Node(name string) Node { return f.all[name] }

// Close ends the subscription. That of nobody ends as well.
func (f *Follower) Close() {
	if f != nil {
		f.nodeChanges.Close()
		f.ciliumNodeChanges.Close()
	}
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
