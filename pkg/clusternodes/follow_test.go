package clusternodes

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestFollower_AgreesWithAnIndexOfAllRows changes rows at random, several in one snapshot, and compares the follower with an index of all rows. Two rows may
// have the same address or range for a time.
func TestFollower_AgreesWithAnIndexOfAllRows(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := nodes.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(table)
	f, err := Follow(txn, table)
	txn.Commit()
	require.NoError(t, err)
	defer f.Close()
	found := 0
	for range 4000 {
		name := string(rune('a' + random.IntN(4)))
		n := row(name, fmt.Sprint("192.0.2.", 1+random.IntN(4)), fmt.Sprintf("10.%d.0.0/%d", random.IntN(3), 8+8*random.IntN(2)))
		n.CIDRs[0] = n.CIDRs[0].Masked()
		txn := db.WriteTxn(table)
		change(t, txn, table, n, random.IntN(3) == 0)
		now := txn.Commit()
		if random.IntN(3) == 0 {
			continue
		}
		f.UpTo(now, statedb.NewWatchSet(), func(before, after *nodes.Node) { require.NotSame(t, before, after) })
		index := indexOf(statedb.Collect(table.All(now))...)
		for i := range 4 {
			addr, pod := netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)}), netip.AddrFrom4([4]byte{10, byte(i), 0, 1})
			require.Equal(t, index.NodesOf(addr), f.NodesOf(addr))
			found += len(f.NodesOf(addr))
			require.Equal(t, index.InPodCIDR(pod), f.InPodCIDR(pod))
			for _, name := range []string{"a", "b", "c", "d"} {
				require.Equal(t, index.MayHost(name, pod), f.MayHost(name, pod))
			}
		}
	}
	require.NotZero(t, found)
}

func TestUnresolved_ObjectsMissingInRow_NamesNode(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	objects, err1 := k8s.NewNodeTable(db)
	ciliumNodes, err2 := cilium.NewNodeTable(db)
	table, err3 := nodes.NewTable(db)
	for _, err := range []error{err1, err2, err3} {
		require.NoError(t, err)
	}
	txn := db.WriteTxn(objects, ciliumNodes)
	for _, name := range []string{"a", "self"} {
		change(t, txn, objects, &k8s.Node{Name: name, UID: "uid-" + name}, false)
		change(t, txn, ciliumNodes, &cilium.Node{Name: name, UID: "cn-" + name}, false)
	}
	change(t, txn, ciliumNodes, &cilium.Node{Name: "b", UID: "cn-b"}, false)
	txn.Commit()
	for _, step := range []struct {
		row  nodes.Node
		want string // after the step
	}{
		{nodes.Node{Name: "self", Source: nodes.Local}, "a"},
		{nodes.Node{Name: "a", UID: "cn-a", Source: nodes.CiliumNode}, "a"}, // its Node did not exist yet
		{nodes.Node{Name: "a", UID: "uid-a", Source: nodes.Kubernetes}, "self"},
		{nodes.Node{Name: "self", UID: "uid-self", Source: nodes.Local}, "a"}, // its CiliumNode did not exist yet
		{nodes.Node{Name: "a", UID: "uid-a", Source: nodes.CiliumNode}, "b"},
		{nodes.Node{Name: "b", UID: "cn-b", Source: nodes.CiliumNode}, ""},
	} {
		txn := db.WriteTxn(table)
		change(t, txn, table, &step.row, false)
		require.Equal(t, step.want, Unresolved(txn.Commit(), objects, ciliumNodes, table), "%+v", step.row)
	}
}

// TestRows_ReportPreviousRow changes rows at random, several times in one snapshot, and compares the reported rows with the table.
func TestRows_ReportPreviousRow(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := nodes.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(table)
	r, err := FollowRows(txn, table)
	txn.Commit()
	require.NoError(t, err)
	defer r.Close()
	known, changed := map[string]*nodes.Node{}, 0
	for i := range 4000 {
		txn := db.WriteTxn(table)
		change(t, txn, table, &nodes.Node{Name: string(rune('a' + random.IntN(4))), UID: fmt.Sprint(i)}, random.IntN(2) == 0)
		now := txn.Commit()
		if random.IntN(3) == 0 {
			continue
		}
		r.UpTo(now, statedb.NewWatchSet(), func(before, after *nodes.Node) {
			changed++
			name := ""
			for _, row := range []*nodes.Node{before, after} {
				if row != nil {
					name = row.Name
				}
			}
			require.Equal(t, known[name], before)
			if known[name] = after; after == nil {
				delete(known, name)
			}
		})
		want := map[string]*nodes.Node{}
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
