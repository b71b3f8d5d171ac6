package ipcachemaps

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// followerRig is a follower whose rounds are run by the test.
type followerRig struct {
	*follower
	table          statedb.RWTable[*ipcache.Entry]
	idTable        statedb.RWTable[*nodeids.NodeID]
	nodeTable      statedb.RWTable[*nodes.Node]
	idsInitialized func(statedb.WriteTxn) // initializes the table of ids
}

func newFollowerRig(tb testing.TB) *followerRig {
	tb.Helper()
	db := statedb.New()
	table, err1 := ipcache.NewTable(db)
	ids, err2 := nodeids.NewTable(db)
	all, err3 := nodes.NewTable(db)
	for _, err := range []error{err1, err2, err3} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(ids)
	r := &followerRig{table: table, idTable: ids, nodeTable: all, idsInitialized: ids.RegisterInitializer(txn, "test")}
	txn.Commit()
	w := newWriter(db, table)
	r.follower = newFollower(db, w, nodeLookup{DB: db, IDs: ids, Nodes: all, Writer: w})
	require.NoError(tb, r.subscribe())
	tb.Cleanup(r.ids.Close)
	tb.Cleanup(r.addrs.Close)
	return r
}

// claim claims addresses on nodes 0 to nodes-1 for the owner cilium-endpoints, and completes all owners.
func (r *followerRig) claim(nodes, each int) {
	var claims []ipcache.Claim
	for i := range nodes * each {
		base := cidr(i / each).Addr().As4()
		base[3] = byte(1 + i%each)
		claims = append(claims, ipcache.Claim{Prefix: netip.PrefixFrom(netip.AddrFrom4(base), 32), Identity: 300, Node: fmt.Sprint("node-", i/each),
			Source: ipcache.SourceRemote})
	}
	for _, owner := range owners {
		if owner == ipcache.OwnerCiliumEndpoints {
			r.writer.Replace(owner, claims, true)
		} else {
			r.writer.Replace(owner, nil, true)
		}
	}
}

// claimRange claims the range of node 0 for the owner overlay.
func (r *followerRig) claimRange() *ipcache.Entry {
	r.writer.Update(ipcache.OwnerOverlay, []ipcache.Claim{{Prefix: cidr(0), Node: "node-0", Source: ipcache.SourceGenerated}}, nil, true)
	return r.row(cidr(0))
}

// claimPod claims an address on node 0 for the owner cilium-endpoints.
func (r *followerRig) claimPod() *ipcache.Entry {
	prefix := netip.PrefixFrom(cidr(0).Addr().Next(), 32)
	r.writer.Update(ipcache.OwnerCiliumEndpoints, []ipcache.Claim{{Prefix: prefix, Identity: 300, Node: "node-0", Source: ipcache.SourceRemote}}, nil, true)
	return r.row(prefix)
}

// row returns the row of a prefix, nil without one.
func (r *followerRig) row(p netip.Prefix) *ipcache.Entry {
	row, _, _ := r.table.Get(r.db.ReadTxn(), ipcache.ByPrefix(p))
	return row
}

// written does what the reconciler does for all rows: it records their use and sets their status to done.
func (r *followerRig) written(tb testing.TB) {
	tb.Helper()
	for e := range r.table.All(r.db.ReadTxn()) {
		r.use(e, value{})
	}
	r.done(tb)
}

// done sets the status of all rows to done.
func (r *followerRig) done(tb testing.TB) {
	tb.Helper()
	txn := r.db.WriteTxn(r.table)
	defer txn.Commit()
	for e := range r.table.All(txn) {
		_, _, err := r.table.Insert(txn, e.Clone().WithStatus(reconciler.StatusDone()))
		require.NoError(tb, err)
	}
}

func (r *followerRig) setID(tb testing.TB, node int, complete bool) {
	tb.Helper()
	txn := r.db.WriteTxn(r.idTable)
	defer txn.Commit()
	_, _, err := r.idTable.Insert(txn, &nodeids.NodeID{ID: uint16(node + 1), Name: fmt.Sprint("node-", node)})
	require.NoError(tb, err)
	if complete {
		r.idsInitialized(txn)
	}
}

// next runs a round, and counts the pending rows of each node. It reports whether the table is initialized in the same snapshot.
func (r *followerRig) next() (pending map[string]int, initialized bool) {
	r.round(r.db.ReadTxn(), statedb.NewWatchSet())
	txn := r.db.ReadTxn()
	pending = map[string]int{}
	for e := range r.table.All(txn) {
		if e.GetStatus().Kind == reconciler.StatusKindPending {
			pending[e.Node()]++
		}
	}
	initialized, _ = r.table.Initialized(txn)
	return pending, initialized
}

// All owners are complete, and their rows are written without the ids of nodes, which arrive later. The table, for which hooks wait, is initialized in the
// commit that makes the rows pending again, and not before.
func TestFollower_TableWaitsForIDs(t *testing.T) {
	t.Parallel()
	r := newFollowerRig(t)
	r.claim(3, 2)
	r.written(t)
	pending, initialized := r.next()
	require.Empty(t, pending)
	require.False(t, initialized, "no id is known")
	r.setID(t, 0, false)
	pending, initialized = r.next()
	require.Equal(t, map[string]int{"node-0": 2}, pending)
	require.False(t, initialized, "more ids may come")
	r.written(t)
	r.setID(t, 1, true)
	pending, initialized = r.next()
	require.Equal(t, map[string]int{"node-1": 2, "node-2": 2}, pending, "the one with a new id, and the one without any")
	require.True(t, initialized)
	r.written(t)
	pending, initialized = r.next()
	require.Empty(t, pending)
	require.True(t, initialized)
}

// replaceID replaces the id 1 of node 0 by 9.
func (r *followerRig) replaceID(tb testing.TB) {
	tb.Helper()
	txn := r.db.WriteTxn(r.idTable)
	defer txn.Commit()
	_, _, err1 := r.idTable.Delete(txn, &nodeids.NodeID{ID: 1, Name: "node-0"})
	_, _, err2 := r.idTable.Insert(txn, &nodeids.NodeID{ID: 9, Name: "node-0"})
	require.NoError(tb, errors.Join(err1, err2))
}

// setAddress sets the address of node 0.
func (r *followerRig) setAddress(tb testing.TB, addr string) {
	tb.Helper()
	txn := r.db.WriteTxn(r.nodeTable)
	defer txn.Commit()
	_, _, err := r.nodeTable.Insert(txn, &nodes.Node{Name: "node-0", Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr(addr)}}})
	require.NoError(tb, err)
}

// Rows of a node whose id and address become known before the rows are written are not marked: their revisions stay. Rows that were written with another id
// are marked, also if a later row of the node was written with the present id.
func TestFollower_MarksOnlyWrittenRows(t *testing.T) {
	t.Parallel()
	r := newFollowerRig(t)
	r.claimRange()
	before := r.table.Revision(r.db.ReadTxn())
	r.next()
	r.setAddress(t, "192.0.2.1")
	r.next()
	r.setID(t, 0, false)
	r.next()
	require.Equal(t, before, r.table.Revision(r.db.ReadTxn()), "no row was written before the id and the address were known")
	r.written(t)
	r.setAddress(t, "192.0.2.1")
	pending, _ := r.next()
	require.Empty(t, pending, "the rows were written with these values")

	r.replaceID(t)
	pod := r.claimPod()
	r.use(pod, value{}) // a new row is written with the present id before the round of the follower
	r.done(t)
	pending, _ = r.next()
	require.Equal(t, map[string]int{"node-0": 2}, pending)
	r.written(t)
	pending, _ = r.next()
	require.Empty(t, pending)

	r.setAddress(t, "192.0.2.2")
	pending, _ = r.next()
	require.Equal(t, map[string]int{"node-0": 1}, pending, "the row of the pod does not depend on the address")
	require.Len(t, r.writer.uses.of, 1)
	r.writer.Update(ipcache.OwnerOverlay, nil, []netip.Prefix{cidr(0)}, true)
	r.writer.Update(ipcache.OwnerCiliumEndpoints, nil, []netip.Prefix{pod.Prefix()}, true)
	require.Empty(t, r.writer.uses.of, "the node has no rows")
}

// BenchmarkFollower_NodeJoins measures a new id of a node with 30 pods in a cluster of n nodes.
func BenchmarkFollower_NodeJoins(b *testing.B) {
	for _, nodes := range []int{50, 500, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			r := newFollowerRig(b)
			r.claim(nodes, 30)
			for i := range nodes {
				r.setID(b, i, i == nodes-1)
			}
			r.round(r.db.ReadTxn(), statedb.NewWatchSet())
			id, pod := uint16(nodes), r.row(netip.PrefixFrom(cidr(7).Addr().Next(), 32))
			require.NotNil(b, pod)
			for b.Loop() {
				r.use(pod, value{}) // like the reconciler
				id++
				txn := r.db.WriteTxn(r.idTable)
				_, _, err := r.idTable.Insert(txn, &nodeids.NodeID{ID: id%1000 + 10_000, Name: "node-7"})
				require.NoError(b, err)
				r.round(txn.Commit(), statedb.NewWatchSet())
			}
		})
	}
}
