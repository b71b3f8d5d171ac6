package overlay

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rangesRig follows a table that a test fills, and applies the changed claims.
type rangesRig struct {
	*ranges
	db     *statedb.DB
	table  statedb.RWTable[*nodes.Node]
	claims map[netip.Prefix]ipcache.Claim
	pool   []netip.Prefix
}

func newRangesRig(tb testing.TB) *rangesRig {
	tb.Helper()
	db := statedb.New()
	table, err := nodes.NewTable(db)
	require.NoError(tb, err)
	r, err := followRanges(db, agentconfig.Agent{EnableIPv4: true, UnderlayIPv6: false, TunnelPort: 8472}, table)
	require.NoError(tb, err)
	tb.Cleanup(r.rows.Close)
	return &rangesRig{ranges: r, db: db, table: table, claims: map[netip.Prefix]ipcache.Claim{}}
}

func (r *rangesRig) write(tb testing.TB, n *nodes.Node, deleted bool) {
	tb.Helper()
	txn := r.db.WriteTxn(r.table)
	defer txn.Commit()
	do := r.table.Insert
	if deleted {
		do = r.table.Delete
	}
	_, _, err := do(txn, n)
	require.NoError(tb, err)
}

func (r *rangesRig) round() {
	put, remove := r.upTo(r.db.ReadTxn(), statedb.NewWatchSet(), r.pool)
	for _, p := range remove {
		delete(r.claims, p)
	}
	for _, c := range put {
		r.claims[c.Prefix] = c
	}
}

// TestRanges_MatchFullRead randomly changes the rows of a few nodes with a few ranges, and the cluster pool.
func TestRanges_MatchFullRead(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	r, claimed := newRangesRig(t), 0
	for range 4000 {
		n := &nodes.Node{Name: string(rune('a' + random.IntN(4))), Source: nodes.Kubernetes}
		if n.Name == "a" && random.IntN(4) > 0 {
			n.Source = nodes.Local
		}
		for _, text := range []string{"10.1.0.0/24", "10.2.0.0/24", "10.0.0.0/8", "fd00::/64"} {
			if random.IntN(2) == 0 {
				n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
			}
		}
		if text := []string{"", "192.0.2.1", "2001:db8::1"}[random.IntN(3)]; text != "" {
			n.Addresses = []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr(text)}}
		}
		r.write(t, n, random.IntN(4) == 0)
		if random.IntN(8) == 0 {
			r.pool = nil
			for _, text := range []string{"10.0.0.0/8", "10.1.0.0/24", "fd00::/16"} {
				if random.IntN(2) == 0 {
					r.pool = append(r.pool, netip.MustParsePrefix(text))
				}
			}
		}
		if random.IntN(4) == 0 {
			continue // several changes in one round
		}
		r.round()
		want, self, reached, unreached := map[netip.Prefix]ipcache.Claim{}, (*nodes.Node)(nil), 0, 0
		for _, p := range r.pool {
			want[p] = ipcache.Claim{Prefix: p, Source: ipcache.SourceGenerated}
		}
		for n := range r.table.All(r.db.ReadTxn()) {
			if n.Source == nodes.Local {
				self = n
				continue
			}
			if known := n.Address(false).IsValid(); !known && len(n.CIDRs) > 0 {
				unreached++
			} else if known {
				reached += len(r.enabledCIDRs(n))
			}
			for _, p := range n.CIDRs {
				if p.Addr().Is4() {
					want[p] = ipcache.Claim{Prefix: p, Node: n.Name, Source: ipcache.SourceGenerated}
				}
			}
		}
		require.Equal(t, want, r.claims)
		require.Equal(t, self, r.self)
		require.Equal(t, reached, r.reached)
		require.Len(t, r.problems(), unreached)
		claimed += len(want)
	}
	require.NotZero(t, claimed)
}

// BenchmarkNodeMoves measures an address change of one node in a cluster of 5,000.
func BenchmarkNodeMoves(b *testing.B) {
	r := newRangesRig(b)
	row := func(i, turn int) *nodes.Node {
		return &nodes.Node{Name: fmt.Sprint("node-", i), Source: nodes.Kubernetes, CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)})}}}
	}
	for i := range 5000 {
		r.write(b, row(i, 0), false)
	}
	r.round()
	require.Len(b, r.claims, 5000)
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		turn++
		r.write(b, row(100, turn), false)
		r.round()
	}
}
