package nodeidallocator

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// idsAfter makes changes and runs a round. It returns the ids, the names and whether the id is released.
func idsAfter(t *testing.T, r *rig, change func(statedb.WriteTxn), list ...*nodes.Node) (got []string) {
	t.Helper()
	r.write(func(txn statedb.WriteTxn) {
		for _, n := range list {
			_, _, err := r.nodes.Insert(txn, n)
			require.NoError(t, err)
		}
		if change != nil {
			change(txn)
		}
	})
	require.NoError(t, r.round(r.DB.ReadTxn(), statedb.NewWatchSet()))
	for _, row := range timeless(r.rows()) {
		got = append(got, fmt.Sprint(row.id, " ", row.name, " ", row.released))
	}
	return got
}

// TestController_DamagedFile_KeepsIDsInMaps: the maps keep the addresses of the previous run until the API server has answered. An id that another node got
// meanwhile would send its packets to the previous node.
func TestController_DamagedFile_KeepsIDsInMaps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "nodes"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nodes", fileName), []byte("damaged"), 0o600))
	addr := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	left := map[netip.Addr]uint16{addr(1): 2, addr(2): 1, netip.MustParseAddr("fd00::2"): 1, addr(3): 3, addr(4): 4, addr(9): 0} // 0 is this node
	one := func(name string, addrs ...netip.Addr) *nodes.Node {
		n := &nodes.Node{Name: name, Source: nodes.Kubernetes}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, nodes.Address{Type: nodes.InternalIP, Addr: a})
		}
		return n
	}
	before := []*nodes.Node{one("a", addr(1)), one("b", netip.MustParseAddr("fd00::2")), one("aa", addr(5)), one("second", addr(1))}

	r := newRigAfter(t, dir, left)
	want := []string{"1 b false", "2 a false", "3 unknown:3 false", "4 unknown:4 false", "5 aa false", "6 second false"}
	require.Equal(t, want, idsAfter(t, r, nil, before...), "from the copy of the objects")

	r = newRigAfter(t, dir, left) // the files have all rows
	require.Equal(t, want, idsAfter(t, r, nil, before...), "the next run")
	want[2] = "3 c false"
	require.Equal(t, want, idsAfter(t, r, nil, one("c", addr(3))), "a node that the copy lacks")
	want[3] = "4 unknown:4 true"
	require.Equal(t, want, idsAfter(t, r, r.complete), "all nodes are known")
	require.Equal(t, append(want, "7 d false"), idsAfter(t, r, nil, one("d")), "a new node while flows may contain id 4")
	want = append(append(want[:3:3], want[4:]...), "7 d false")
	require.Equal(t, want, idsAfter(t, r, r.pass), "no flow contains id 4")
}

// TestController_LostFile_ReservesIDsInIPCache: a released id has no address in node_addrs, but entries of ipcache and of flows may contain it.
func TestController_LostFile_ReservesIDsInIPCache(t *testing.T) {
	t.Parallel()
	r := newRigAfter(t, t.TempDir(), nil, bpf.NodeThis, 1, nodeids.Max+1)
	one := func(name string) *nodes.Node { return &nodes.Node{Name: name, Source: nodes.Kubernetes} }
	require.Equal(t, []string{"1 unknown:1 false", "2 a false"}, idsAfter(t, r, nil, one("a")), "from the copy of the objects")
	want := []string{"1 unknown:1 true", "2 a false"}
	require.Equal(t, want, idsAfter(t, r, r.complete), "all nodes are known")
	require.Equal(t, want, idsAfter(t, r, r.pass), "ipcache contains the id")
	r.kernel.named = map[uint16]bool{}
	require.Equal(t, []string{"1 b false", "2 a false"}, idsAfter(t, r, nil, one("b")), "the id is free")
}
