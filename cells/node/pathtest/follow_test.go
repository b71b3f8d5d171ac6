package pathtest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestFollow_MatchesFullRead changes nodes and verdicts at random. It compares the targets with all nodes, and the counts of paths with all rows.
func TestFollow_MatchesFullRead(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	missing, failed := 0, 0
	for range 20 {
		r := newRig(t, 0)
		r.restore()
		feed, err := r.subscribe()
		require.NoError(t, err)
		known := map[string]*nodes.Node{}
		for i := range 200 {
			complete := i >= 100
			txn := r.db.WriteTxn(r.nodes)
			for range 1 + random.IntN(2) {
				n := nodeOf(random.IntN(6))
				if at := random.IntN(3); at < len(n.Addresses) {
					n.Addresses[at].Addr = outer(random.IntN(3))
				}
				if random.IntN(8) == 0 {
					n.Source = nodes.Local
				}
				n.CIDRs = []netip.Prefix{netip.PrefixFrom(inner(256*random.IntN(4)), 24-8*random.IntN(2)).Masked()}
				write := r.nodes.Insert
				if random.IntN(4) == 0 {
					write = r.nodes.Delete
				}
				_, _, err := write(txn, n)
				require.NoError(t, err)
			}
			now := txn.Commit()
			var u update
			for _, to := range r.targets {
				row := *to.rows[0]
				if row.State = pathtests.States[random.IntN(3)]; row.State == pathtests.Failed {
					row.Fault = pathtests.Blocked
				}
				to.rows[0] = &row
				u.put = append(u.put, to)
			}
			r.follow(now, statedb.NewWatchSet(), complete, &u)
			require.NoError(t, r.commit(u, complete))

			if complete { // until then missing nodes stay
				clear(known)
			}
			ranges := map[netip.Prefix]string{}
			for n := range r.nodes.All(now) {
				if n.Source != nodes.Local {
					known[n.Name] = n
				}
				ranges[n.CIDRs[0]] = n.Name
			}
			require.Len(t, r.targets, len(known), "round %d", i)
			for name, n := range known {
				to := r.targets[name]
				if row, _, found := r.nodes.Get(now, nodes.ByName(name)); !found || row != n {
					missing++
					continue
				}
				require.Equal(t, peerOf(n, r.in.Agent), to.peer)
				require.False(t, to.due.IsZero())
				require.Less(t, time.Until(to.due), time.Hour)
			}
			for range 5 {
				addr, longest, want := inner(random.IntN(1024)), -1, ""
				for p, name := range ranges {
					if p.Contains(addr) && p.Bits() > longest {
						longest, want = p.Bits(), name
					}
				}
				if names := r.users.ranges.At(addr); want == "" {
					require.Empty(t, names)
				} else {
					require.Equal(t, want, names[len(names)-1])
				}
			}
			want := pathtests.Summarize(statedb.ToSeq(r.table.All(r.db.ReadTxn())))
			require.Equal(t, want, r.paths.summary())
			failed += len(want.Failed)
		}
		feed.Close()
		r.rows.Close()
	}
	require.NotZero(t, missing)
	require.NotZero(t, failed)
}

// BenchmarkNodeMoves measures a changed address of a node beside 5,000 others, with the report.
func BenchmarkNodeMoves(b *testing.B) {
	r := newRig(b, 5000)
	r.restore()
	feed, err := r.subscribe()
	require.NoError(b, err)
	defer feed.Close()
	defer func() { r.rows.Close() }()
	round := func() {
		var u update
		r.follow(r.db.ReadTxn(), statedb.NewWatchSet(), true, &u)
		require.NoError(b, r.commit(u, true))
		r.paths.summary()
	}
	round()
	b.ReportAllocs()
	for turn := 0; b.Loop(); turn++ {
		n := nodeOf(100)
		n.Addresses[0].Addr = netip.AddrFrom4([4]byte{172, 17, byte(turn), 1})
		txn := r.db.WriteTxn(r.nodes)
		_, _, err := r.nodes.Insert(txn, n)
		require.NoError(b, err)
		txn.Commit()
		round()
	}
}
