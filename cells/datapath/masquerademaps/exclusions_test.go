package masquerademaps

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// exclusionsRig follows a table that a test fills.
type exclusionsRig struct {
	*exclusions
	db    *statedb.DB
	nodes statedb.RWTable[*nodes.Node]
	table statedb.RWTable[*masquerade.Exclusion]
	done  func(statedb.WriteTxn)
}

func newExclusionsRig(tb testing.TB, r rules) *exclusionsRig {
	tb.Helper()
	db := statedb.New()
	all, err1 := nodes.NewTable(db)
	table, err2 := masquerade.NewExclusionTable(db)
	require.NoError(tb, err1)
	require.NoError(tb, err2)
	txn := db.WriteTxn(table)
	done := table.RegisterInitializer(txn, "test")
	txn.Commit()
	e, err := followExclusions(db, r, all)
	require.NoError(tb, err)
	tb.Cleanup(e.rows.Close)
	return &exclusionsRig{e, db, all, table, done}
}

func (r *exclusionsRig) write(tb testing.TB, n *nodes.Node, deleted bool) {
	tb.Helper()
	txn := r.db.WriteTxn(r.nodes)
	defer txn.Commit()
	write := r.nodes.Insert
	if deleted {
		write = r.nodes.Delete
	}
	_, _, err := write(txn, n)
	require.NoError(tb, err)
}

func (r *exclusionsRig) round(tb testing.TB, self []*localnode.LocalNode, file []masquerade.IPMasq, complete bool) {
	tb.Helper()
	r.upTo(r.db.ReadTxn(), statedb.NewWatchSet(), self, file)
	require.NoError(tb, r.commit(r.db, r.table, complete, r.done))
}

// TestExclusions_AgreeWithFullScan randomly changes rows with a few ranges. Unchanged rows are not written again.
func TestExclusions_AgreeWithFullScan(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	var all []netip.Prefix
	for i := range byte(5) {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16))
	}
	some := func() (list []netip.Prefix) {
		for _, p := range all {
			if random.IntN(3) == 0 {
				list = append(list, p)
			}
		}
		return list
	}
	r := newExclusionsRig(t, rules{excluded: map[netip.Prefix]string{all[0]: masquerade.NativeRouting}})
	var self []*localnode.LocalNode
	var file []masquerade.IPMasq
	found := map[string]int{}
	for i := range 4000 {
		switch random.IntN(6) {
		case 0:
			self = []*localnode.LocalNode{{Name: "self", IPv4: localnode.Family{AllocRange: all[random.IntN(len(all))]}}}
		case 1:
			file = nil
			for _, p := range some() {
				file = append(file, masquerade.IPMasq{Prefix: p})
			}
		default:
			n := &nodes.Node{Name: string(rune('a' + random.IntN(3))), CIDRs: some()}
			n.FromNode = random.IntN(len(n.CIDRs) + 1)
			r.write(t, n, random.IntN(4) == 0)
		}
		if random.IntN(4) == 0 {
			continue // several changes in one round
		}
		before := map[netip.Prefix]*masquerade.Exclusion{}
		for row := range r.table.All(r.db.ReadTxn()) {
			before[row.Prefix] = row
		}
		complete := i > 2000
		r.round(t, self, file, complete)
		want, have := map[netip.Prefix]string{}, map[netip.Prefix]string{}
		for n := range r.nodes.All(r.db.ReadTxn()) {
			for _, p := range n.CIDRs[:n.FromNode] {
				want[p] = masquerade.OtherPods
			}
		}
		for _, n := range self {
			want[n.IPv4.AllocRange] = masquerade.OwnPods
		}
		for _, m := range file {
			want[m.Prefix] = masquerade.ByIPMasqAgent
		}
		want[all[0]] = masquerade.NativeRouting
		for row := range r.table.All(r.db.ReadTxn()) {
			have[row.Prefix] = row.Reason
			found[row.Reason]++
			if old := before[row.Prefix]; old != nil && old.Equal(row) {
				require.Same(t, old, row)
			}
		}
		require.Equal(t, want, have)
		done, _ := r.table.Initialized(r.db.ReadTxn())
		require.Equal(t, complete, done)
	}
	require.Len(t, found, 4)
}

// BenchmarkNodeJoins measures a node that joins and leaves a cluster of 5,000.
func BenchmarkNodeJoins(b *testing.B) {
	r := newExclusionsRig(b, rules{})
	row := func(i int) *nodes.Node {
		return &nodes.Node{Name: fmt.Sprint("node-", i), FromNode: 1, CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}}
	}
	for i := range 5000 {
		r.write(b, row(i), false)
	}
	r.round(b, nil, nil, true)
	require.Equal(b, 5000, r.table.NumObjects(r.db.ReadTxn()))
	b.ReportAllocs()
	for b.Loop() {
		for _, deleted := range []bool{false, true} {
			r.write(b, row(5000), deleted)
			r.round(b, nil, nil, true)
		}
	}
}
