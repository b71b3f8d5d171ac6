package clusternodes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestFollower_AgreesWithAReaderOfAllNodes changes objects at random, several in one snapshot, and compares with what is read of all of them.
func TestFollower_AgreesWithAReaderOfAllNodes(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	nodes, err1 := k8s.NewNodeTable(db)
	ciliumNodes, err2 := cilium.NewNodeTable(db)
	require.NoError(t, err1)
	require.NoError(t, err2)
	txn := db.WriteTxn(nodes, ciliumNodes)
	f, err := Follow(txn, nodes, ciliumNodes)
	txn.Commit()
	require.NoError(t, err)
	defer f.Close()
	known, found := map[string]Node{}, 0
	for range 4000 {
		name, remove := string(rune('a'+random.IntN(4))), random.IntN(3) == 0
		addr, cidr := fmt.Sprint("192.0.2.", 1+random.IntN(4)), fmt.Sprintf("10.%d.0.0/%d", random.IntN(3), 8+8*random.IntN(2))
		txn := db.WriteTxn(nodes, ciliumNodes)
		if random.IntN(2) == 0 {
			change(t, txn, nodes, &k8s.Node{Name: name, PodCIDR: cidr, Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: addr}}}, remove)
		} else {
			change(t, txn, ciliumNodes, &cilium.Node{Name: name, PodCIDRs: []string{cidr}, Addresses: []cilium.NodeAddress{{Type: "CiliumInternalIP", IP: addr}}}, remove)
		}
		now := txn.Commit()
		if random.IntN(3) == 0 {
			continue
		}
		f.UpTo(now, statedb.NewWatchSet(), func(before, after Node) {
			name := max(before.Name, after.Name)
			require.Equal(t, known[name], before)
			require.False(t, before.Equal(after))
			if known[name] = after; after.Name == "" {
				delete(known, name)
			}
		})
		all := Read(now, nodes, ciliumNodes)
		index := all.Index()
		require.True(t, all.Equal(slices.SortedFunc(maps.Values(known), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })))
		for _, n := range all {
			require.Equal(t, n, f.Node(n.Name))
		}
		require.Equal(t, Node{}, f.Node("z"))
		for i := range 4 {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})
			require.Equal(t, index.NodesOf(addr), f.NodesOf(addr))
			found += len(f.NodesOf(addr))
			pod := netip.AddrFrom4([4]byte{10, byte(i), 0, 1})
			require.Equal(t, index.HoldsPods("a", pod), f.HoldsPods("a", pod))
		}
		in := map[netip.Prefix][]string{}
		for p, names := range f.NodesIn(netip.MustParsePrefix("192.0.2.2/31")) {
			in[p] = names
		}
		for _, text := range []string{"192.0.2.2", "192.0.2.3"} {
			addr := netip.MustParseAddr(text)
			require.Equal(t, f.NodesOf(addr), in[Whole(addr)])
		}
	}
	require.NotZero(t, found)
}

// TestRows_TellWhatARowWas changes rows at random, several times in one snapshot, and compares with the table.
func TestRows_TellWhatARowWas(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := tables.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(table)
	r, err := FollowRows(txn, table)
	txn.Commit()
	require.NoError(t, err)
	defer r.Close()
	known, changed := map[string]*tables.Node{}, 0
	for i := range 4000 {
		txn := db.WriteTxn(table)
		change(t, txn, table, &tables.Node{Name: string(rune('a' + random.IntN(4))), UID: fmt.Sprint(i)}, random.IntN(2) == 0)
		now := txn.Commit()
		if random.IntN(3) == 0 {
			continue
		}
		r.UpTo(now, statedb.NewWatchSet(), func(before, after *tables.Node) {
			changed++
			name := ""
			for _, row := range []*tables.Node{before, after} {
				if row != nil {
					name = row.Name
				}
			}
			require.Equal(t, known[name], before)
			if known[name] = after; after == nil {
				delete(known, name)
			}
		})
		want := map[string]*tables.Node{}
		for row := range table.All(now) {
			want[row.Name] = row
		}
		require.Equal(t, want, known)
		require.Equal(t, want, r.All())
	}
	require.NotZero(t, changed)
}

func change[R any](t *testing.T, txn statedb.WriteTxn, table statedb.RWTable[R], row R, deleted bool) {
	t.Helper()
	write := table.Insert
	if deleted {
		write = table.Delete
	}
	_, _, err := write(txn, row)
	require.NoError(t, err)
}
