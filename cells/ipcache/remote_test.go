package ipcache

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
)

// remoteRig is a controller whose passes the test makes.
type remoteRig struct {
	*remote
	pods  statedb.RWTable[*cilium.Endpoint]
	table statedb.RWTable[*ipcachetable.Entry]
}

func newRemoteRig(tb testing.TB, nodes int) *remoteRig {
	tb.Helper()
	db := statedb.New()
	pods, err1 := cilium.NewEndpointTable(db)
	ciliumNodes, err2 := cilium.NewNodeTable(db)
	k8sNodes, err3 := k8s.NewNodeTable(db)
	local, err4 := endpoints.NewTable(db)
	known, err5 := identities.NewTable(db)
	progress, err6 := policyprogress.NewTable(db)
	refused, err7 := refusedclaims.NewTable(db)
	table, err8 := ipcachetable.NewTable(db)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(k8sNodes, known, progress)
	for i := range nodes {
		_, _, err := k8sNodes.Insert(txn, &k8s.Node{Name: fmt.Sprint("node-", i), PodCIDRs: []string{cidr(i).String()},
			Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: nodeAddr(i).String()}}})
		require.NoError(tb, err)
	}
	for id := range uint32(1000) {
		_, _, err := known.Insert(txn, &identities.Identity{ID: 256 + id})
		require.NoError(tb, err)
	}
	_, _, err := progress.Insert(txn, policyprogress.Progress{Identities: 1000, Revision: 1})
	require.NoError(tb, err)
	txn.Commit()
	r := newRemote(remoteParams{DB: db, Settings: settings.Agent{NodeName: "here", EnableIPv4: true, EnableIPv6: true}, Pods: pods,
		Nodes: k8sNodes, CiliumNodes: ciliumNodes, Local: local, Identities: known, Progress: progress, Refused: refused,
		Writer: newWriter(db, table), Kernel: newFake()})
	require.NoError(tb, r.subscribe())
	tb.Cleanup(r.changes.Close)
	return &remoteRig{r, pods, table}
}

func cidr(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), 0}), 24)
}

func nodeAddr(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(node >> 8), byte(node)})
}

// put makes a pod; its number is its node and its place there.
func (r *remoteRig) put(tb testing.TB, i, identity int) {
	tb.Helper()
	node := i / 100
	base := cidr(node).Addr().As4()
	base[3] = byte(1 + i%100)
	txn := r.DB.WriteTxn(r.pods)
	defer txn.Commit()
	_, _, err := r.pods.Insert(txn, &cilium.Endpoint{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i),
		Identity: uint32(256 + identity), Node: nodeAddr(node), Host: fmt.Sprint("node-", node), Addrs: []netip.Addr{netip.AddrFrom4(base)}})
	require.NoError(tb, err)
}

func (r *remoteRig) pass() { r.passWith(false) }

// passWith makes a pass over objects that are complete, or may be a copy of before.
func (r *remoteRig) passWith(complete bool) {
	txn := r.DB.ReadTxn()
	put, remove := r.compute(txn, r.follow(txn, statedb.NewWatchSet()), complete)
	r.Writer.update(ipcachetable.OwnerCiliumEndpoints, put, remove, complete)
}

// A copy of the objects is older than what the agent before wrote: pod 0 has another identity by now, and the address of pod 1
// belongs to somebody else. Nobody is known by the older number until the objects themselves say so.
func TestRemote_CopyTakesNobodyBack(t *testing.T) {
	t.Parallel()
	r := newRemoteRig(t, 1)
	at := func(i byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1 + i}), 32) }
	for i := range byte(3) {
		require.NoError(t, r.Kernel.Put(at(i), value{Identity: 300 + uint32(i)}, netip.Addr{}))
	}
	r.put(t, 0, 1)  // 257
	r.put(t, 1, 2)  // 258
	r.put(t, 2, 46) // 302, as before
	r.put(t, 3, 3)  // the maps know nothing of it
	r.pass()
	claims := func() map[netip.Prefix]uint32 {
		have := map[netip.Prefix]uint32{}
		for row := range r.table.All(r.DB.ReadTxn()) {
			have[row.Prefix] = row.Identity
		}
		return have
	}
	require.Equal(t, map[netip.Prefix]uint32{at(2): 302, at(3): 259}, claims())

	r.put(t, 0, 44) // the first object of the list itself
	r.pass()
	require.Equal(t, map[netip.Prefix]uint32{at(0): 300, at(2): 302, at(3): 259}, claims())

	r.passWith(true)
	require.Equal(t, map[netip.Prefix]uint32{at(0): 300, at(1): 258, at(2): 302, at(3): 259}, claims())
	require.Empty(t, r.kept)
}

// Of two pods with one address the younger has it, in whatever order a list names them: the other's object is a leftover.
func TestRemote_YoungerObjectCounts(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int64{{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {0, 3, 0}} {
		r := newRemoteRig(t, 1)
		put := func(created int64, identity uint32) {
			txn := r.DB.WriteTxn(r.pods)
			defer txn.Commit()
			_, _, err := r.pods.Insert(txn, &cilium.Endpoint{Namespace: "default", Name: fmt.Sprint("pod-", created), UID: fmt.Sprint("uid-", created), Created: created,
				Identity: identity, Node: nodeAddr(0), Host: "node-0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
			require.NoError(t, err)
		}
		for _, created := range order {
			put(created, 300+uint32(created))
			r.pass()
		}
		put(1, 400) // the leftover changes
		r.pass()
		row, _, found := r.table.Get(r.DB.ReadTxn(), ipcachetable.ByPrefix(netip.MustParsePrefix("10.0.0.1/32")))
		require.True(t, found)
		require.Equal(t, uint32(303), row.Identity, "%v", order)
	}
}

const (
	manyNodes = 200
	manyPods  = 20_000
)

// TestRemote_TwentyThousandPods: all are claimed, and what they cost is told.
func TestRemote_TwentyThousandPods(t *testing.T) {
	r := newRemoteRig(t, manyNodes)
	for i := range manyPods {
		r.put(t, i, i%1000)
	}
	before := heap()
	r.pass()
	require.Equal(t, manyPods, r.table.NumObjects(r.DB.ReadTxn()))
	require.Empty(t, r.refused)
	require.Empty(t, r.pending)
	t.Logf("%d pods: %d bytes of heap each, without their rows in cilium-endpoints", manyPods, (heap()-before)/manyPods)
	runtime.KeepAlive(r)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRemote_OnePodOfMany is what a change of one pod costs beside 20,000 others.
func BenchmarkRemote_OnePodOfMany(b *testing.B) {
	r := newRemoteRig(b, manyNodes)
	for i := range manyPods {
		r.put(b, i, i%1000)
	}
	r.pass()
	n := 0
	for b.Loop() {
		n++
		r.put(b, n%manyPods, n%999)
		r.pass()
	}
}

// BenchmarkRemote_FirstPass is what a start costs.
func BenchmarkRemote_FirstPass(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		r := newRemoteRig(b, manyNodes)
		for i := range manyPods {
			r.put(b, i, i%1000)
		}
		b.StartTimer()
		r.pass()
	}
}
