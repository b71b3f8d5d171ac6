package nodehealthprober

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestFollow_MatchesFullRead changes nodes at random, including this one. It compares the rows of paths and the digest with those computed from all
// nodes. Missing nodes stay until the table is complete.
func TestFollow_MatchesFullRead(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	paths, missing := 0, 0
	for range 20 {
		r := newRig(t, newFake(), 3)
		require.NoError(t, r.subscribe())
		known := map[string]*nodes.Node{}
		for i := range 200 {
			complete := i >= 100
			txn := r.db.WriteTxn(r.nodes)
			for range 1 + random.IntN(2) {
				n := &nodes.Node{Name: nameOf(random.IntN(6)), UID: nameOf(random.IntN(2))}
				for _, kind := range []string{nodes.InternalIP, nodes.HealthIP, nodes.CiliumInternalIP} {
					if random.IntN(2) == 0 {
						n.Addresses = append(n.Addresses, nodes.Address{Type: kind, Addr: addressOf(random.IntN(4))})
					}
				}
				write := r.nodes.Insert
				if random.IntN(4) == 0 {
					write = r.nodes.Delete
				}
				_, _, err := write(txn, n)
				require.NoError(t, err)
			}
			now := txn.Commit()
			var u update
			r.follow(now, statedb.NewWatchSet(), complete, &u)
			require.NoError(t, r.commit(u, complete))

			if complete {
				clear(known)
			}
			var sum uint64
			for n := range r.nodes.All(now) {
				known[n.Name] = n
				if n.Name != nameOf(0) {
					sum ^= hashOf("default", n)
				}
			}
			if d := r.view.with("stranger"); complete {
				require.Equal(t, digest{r.nodes.NumObjects(now), sum}, *d)
			} else {
				require.Nil(t, d)
			}
			self, _, _ := r.nodes.Get(now, nodes.ByName(nameOf(0)))
			want, have := map[string]netip.Addr{}, map[string]netip.Addr{}
			for name, n := range known {
				require.Contains(t, r.targets, name)
				for _, p := range pathsOf(n, self, r.agent) {
					want[p.Node+" "+string(p.Kind)+" "+p.UID] = p.Addr
					if _, _, found := r.nodes.Get(now, nodes.ByName(name)); !found {
						missing++
					}
				}
			}
			require.Len(t, r.targets, len(known))
			for row := range r.table.All(r.db.ReadTxn()) {
				have[row.Node+" "+string(row.Kind)+" "+row.UID] = row.Addr
				if n, _, found := r.nodes.Get(now, nodes.ByName(row.Node)); found {
					require.Equal(t, !canSend(self, row.Kind, false), row.Unasked != "", "%s of %v", row.Kind, n)
				}
			}
			require.Equal(t, want, have, "round %d", i)
			paths += len(have)
		}
		r.rows.Close()
	}
	require.NotZero(t, paths)
	require.NotZero(t, missing)
}
