package ipcachemaps

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// nodeLookup resolves the node of a row to its id and address. A row names its node; it is written without an id while the node has none, and again when it has one.
type nodeLookup struct {
	cell.In

	DB     *statedb.DB
	IDs    statedb.Table[*nodeids.NodeID]
	Nodes  statedb.Table[*nodes.Node]
	Writer *writer
}

// value returns the map entry of a row. Have is the entry that the map has now. Until all ids are known, a node without a known id keeps the id that the
// previous run wrote.
func (n nodeLookup) value(txn statedb.ReadTxn, e *ipcache.Entry, have value) value {
	v := value{Identity: e.Identity}
	if e.Node() == "" {
		return v
	}
	v.Node = n.id(txn, e.Node())
	if complete, _ := n.IDs.Initialized(txn); v.Node == 0 && !complete && have.Identity == e.Identity {
		v.Node = have.Node
	}
	return v
}

// id returns 0 for a node without an id and for a removed node, whose id may be assigned to another node.
func (n nodeLookup) id(txn statedb.ReadTxn, name string) uint16 {
	row, _, found := n.IDs.Get(txn, nodeids.ByName(name))
	if !found || !row.Released.IsZero() {
		return 0
	}
	return row.ID
}

// peer returns the IPv4 address by which programs of the previous release identify the node of a row. It is invalid for pods: those programs read the node of
// the range that contains the pod's address.
func (n nodeLookup) peer(txn statedb.ReadTxn, e *ipcache.Entry) netip.Addr {
	if e.Node() == "" || e.Owner() == ipcache.OwnerCiliumEndpoints {
		return netip.Addr{}
	}
	return n.address(txn, e.Node())
}

func (n nodeLookup) address(txn statedb.ReadTxn, name string) netip.Addr {
	node, _, found := n.Nodes.Get(txn, nodes.ByName(name))
	if !found {
		return netip.Addr{}
	}
	return node.Address(false)
}

// follower marks rows pending that were written with another id or address of their node. Its cost is proportional to the rows of these nodes. The table is
// initialized only when the ids of all nodes are known and the rows that were written without an id are pending again, so hooks that wait for the rows also
// wait for the ids.
type follower struct {
	nodeLookup
	db       *statedb.DB
	writer   *writer
	ids      *changefeed.Feed[*nodeids.NodeID]
	addrs    *changefeed.Feed[*nodes.Node]
	known    map[string]known // by name of the node
	complete bool             // all ids were known in the last round
}

// known is the part of a node on which its rows depend. The zero value means that neither is known.
type known struct {
	id   uint16
	addr netip.Addr
}

func newFollower(db *statedb.DB, w *writer, n nodeLookup) *follower {
	return &follower{nodeLookup: n, db: db, writer: w, known: map[string]known{}}
}

func registerFollower(jobs job.Group, db *statedb.DB, w *writer, n nodeLookup) {
	watchdog.AddRetried(jobs, "follow-nodes", newFollower(db, w, n).run, minRetry, maxRetry)
}

func (f *follower) run(ctx context.Context, health cell.Health) error {
	if err := f.subscribe(); err != nil {
		return err
	}
	defer f.ids.Close()
	defer f.addrs.Close()
	return loop.Run(ctx, f.db, loop.Options{Tables: []statedb.TableMeta{f.IDs, f.Nodes}, Settle: settle}, func(r *loop.Round) error {
		f.round(r.Txn, r.Changed)
		health.OK(fmt.Sprintf("%d nodes with an id or an address", len(f.known)))
		return nil
	})
}

// subscribe follows the tables from their first row on. A retry continues where the previous attempt ended.
func (f *follower) subscribe() (err error) {
	if f.addrs != nil {
		return nil
	}
	txn := f.db.WriteTxn(f.IDs, f.Nodes)
	defer txn.Commit()
	ids, err := changefeed.Follow(txn, f.IDs)
	if err != nil {
		return err
	}
	addrs, err := changefeed.Follow(txn, f.Nodes)
	if err != nil {
		ids.Close()
		return err
	}
	f.ids, f.addrs = ids, addrs
	return nil
}

// round marks the rows of changed nodes that were written with another id or address. Once all ids are known, rows whose node has no id lose the id of the
// previous run.
func (f *follower) round(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	names := map[string]bool{}
	for _, change := range f.ids.UpTo(txn, changed) {
		names[change.Object.Name] = true
	}
	for _, change := range f.addrs.UpTo(txn, changed) {
		names[change.Object.Name] = true
	}
	complete, more := f.IDs.Initialized(txn)
	if !complete {
		changed.Add(more)
	}
	differ := map[string]bool{} // node name -> whether the id differs
	for name := range names {
		now := known{f.id(txn, name), f.address(txn, name)}
		if id, outdated := f.writer.uses.outdated(name, now); outdated {
			differ[name] = id
		}
		if f.known[name] = now; now == (known{}) {
			delete(f.known, name)
		}
	}
	if complete && !f.complete {
		f.complete = true
		for _, name := range f.writer.nodes() {
			differ[name] = differ[name] || f.known[name].id == 0
		}
	}
	f.writer.mark(differ, complete)
}
