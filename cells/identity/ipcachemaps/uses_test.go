package ipcachemaps

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// usesRig writes rows like the reconciler, in two steps, so that ids, addresses and rows may change while rows are being written.
type usesRig struct {
	*followerRig
	entries map[netip.Prefix]value
	peers   map[netip.Prefix]netip.Addr
	begun   []writing
}

// writing is a row whose values have been read and are not written yet.
type writing struct {
	row      *ipcache.Entry
	revision statedb.Revision
	entry    value
	peer     netip.Addr
}

// begin reads the values of some pending rows.
func (r *usesRig) begin(some func() bool) {
	for row, revision := range r.table.All(r.db.ReadTxn()) {
		if row.GetStatus().Kind != reconciler.StatusKindPending || !some() {
			continue
		}
		entry, peer := r.use(row, r.entries[row.Prefix()])
		r.begun = append(r.begun, writing{row, revision, entry, peer})
	}
}

// end writes these values. A row that has changed meanwhile stays pending.
func (r *usesRig) end() {
	txn := r.db.WriteTxn(r.table)
	defer txn.Commit()
	for _, w := range r.begun {
		r.entries[w.row.Prefix()], r.peers[w.row.Prefix()] = w.entry, w.peer
		_, _, _ = r.table.CompareAndSwap(txn, w.revision, w.row.Clone().WithStatus(reconciler.StatusDone()))
	}
	r.begun = nil
}

// change changes the id or the address of a node, or the claim of a prefix.
func (r *usesRig) change(tb testing.TB, random *rand.Rand) {
	tb.Helper()
	node := random.IntN(3)
	name := fmt.Sprint("node-", node)
	prefix, owner := cidr(random.IntN(4)), ipcache.OwnerOverlay
	if random.IntN(2) == 0 {
		prefix, owner = netip.PrefixFrom(prefix.Addr().Next(), 32), ipcache.OwnerCiliumEndpoints
	}
	txn := r.db.WriteTxn(r.idTable, r.nodeTable)
	switch random.IntN(6) {
	case 0:
		for row := range r.idTable.All(txn) {
			if row.Name == name {
				_, _, err := r.idTable.Delete(txn, row)
				require.NoError(tb, err)
			}
		}
		if random.IntN(4) > 0 {
			_, _, err := r.idTable.Insert(txn, &nodeids.NodeID{ID: uint16(1 + 10*node + random.IntN(3)), Name: name})
			require.NoError(tb, err)
		}
		txn.Commit()
	case 1:
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(3))})
		_, _, err := r.nodeTable.Insert(txn, &nodes.Node{Name: name, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addr}}})
		require.NoError(tb, err)
		txn.Commit()
	case 2:
		txn.Abort()
		r.writer.Update(owner, nil, []netip.Prefix{prefix}, true)
	default:
		txn.Abort()
		r.writer.Update(owner, []ipcache.Claim{{Prefix: prefix, Node: name, Source: ipcache.SourceGenerated}}, nil, true)
	}
}

// TestUses_RowsGetTheLastValues changes ids, addresses and rows at random. When all rounds have ended and no row is pending, each entry has the last id and
// address of its node.
func TestUses_RowsGetTheLastValues(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	written := 0
	for range 50 {
		r := &usesRig{followerRig: newFollowerRig(t), entries: map[netip.Prefix]value{}, peers: map[netip.Prefix]netip.Addr{}}
		for i := range 200 {
			switch random.IntN(5) {
			case 0:
				r.begin(func() bool { return random.IntN(2) == 0 })
			case 1:
				r.end()
			case 2:
				r.next()
			default:
				r.change(t, random)
			}
			if i == 100 {
				txn := r.db.WriteTxn(r.idTable)
				r.idsInitialized(txn)
				txn.Commit()
			}
		}
		r.end()
		for pending, _ := r.next(); len(pending) > 0; pending, _ = r.next() {
			r.begin(func() bool { return true })
			r.end()
		}
		txn := r.db.ReadTxn()
		for row := range r.table.All(txn) {
			require.Equal(t, r.value(txn, row, value{}), r.entries[row.Prefix()], row.Prefix())
			require.Equal(t, r.peer(txn, row), r.peers[row.Prefix()], row.Prefix())
			written++
		}
	}
	require.NotZero(t, written)
}
