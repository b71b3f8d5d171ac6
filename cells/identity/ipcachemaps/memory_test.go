package ipcachemaps

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

const (
	manyNodes = 200
	manyPods  = 20_000
)

// podBytes limits the heap in bytes for a pod of another node, with its rows in cilium-endpoints and ipcache. It is 1.15 times the measured value.
const podBytes = 650

// TestRemote_TwentyThousandPods checks that all pods are claimed and that their memory stays below the limit.
func TestRemote_TwentyThousandPods(t *testing.T) {
	r := newRemoteRig(t, manyNodes)
	r.pass()
	before := heap()
	for i := range manyPods {
		r.put(t, i, i%1000)
	}
	r.pass()
	r.written(t)
	require.Equal(t, manyPods, r.table.NumObjects(r.DB.ReadTxn()))
	require.Empty(t, r.rejected)
	require.Empty(t, r.pending)
	each := (heap() - before) / manyPods
	t.Logf("%d pods: %d bytes of heap each", manyPods, each)
	require.LessOrEqual(t, each, uint64(podBytes))
	runtime.KeepAlive(r)
}

// written sets the status of all rows to done, like the reconciler.
func (r *remoteRig) written(tb testing.TB) {
	tb.Helper()
	var rows []*ipcache.Entry
	for row := range r.table.All(r.DB.ReadTxn()) {
		rows = append(rows, row)
	}
	for batch := range slices.Chunk(rows, 1000) {
		txn := r.DB.WriteTxn(r.table)
		for _, row := range batch {
			_, _, err := r.table.Insert(txn, row.Clone().WithStatus(reconciler.StatusDone()))
			require.NoError(tb, err)
		}
		txn.Commit()
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRemote_BytesOfPods measures the memory of each of 150,000 pods on 5,000 nodes in cilium-endpoints, in ipcache, and in the controller and the writer.
func BenchmarkRemote_BytesOfPods(b *testing.B) {
	const nodes, pods = 5000, 150_000
	report := func(what string, bytes uint64) { b.ReportMetric(float64(bytes)/pods, what+"-B/pod") }
	for b.Loop() {
		r := newRemoteRig(b, nodes)
		r.pass()
		empty := heap()
		for i := 0; i < pods; {
			txn := r.DB.WriteTxn(r.pods)
			for range 100 {
				_, _, err := r.pods.Insert(txn, farPod(i, pods/nodes))
				require.NoError(b, err)
				i++
			}
			txn.Commit()
		}
		rows := heap()
		report("cilium-endpoints", rows-empty)
		r.pass()
		r.written(b)
		all := heap()
		require.Equal(b, pods, r.table.NumObjects(r.DB.ReadTxn()))
		r.remote.pods, r.Writer.byNode = newPods(), newByNode()
		left := heap()
		report("ipcache", left-rows)
		report("cell", all-left)
		report("total", all-empty)
		runtime.KeepAlive(r)
	}
}

// farPod returns a pod with texts of realistic length.
func farPod(i, each int) *cilium.Endpoint {
	node := i / each
	base := cidr(node).Addr().As4()
	base[3] = byte(10 + i%each)
	return cilium.NewEndpoint(cilium.EndpointFields{Namespace: fmt.Sprint("team-", i%100), Name: fmt.Sprintf("app-%d-6d4cf56db6-%05d", node%50, i),
		UID: fmt.Sprintf("5a1ef0de-%04x-4000-8000-%012x", i%each, node), Created: 1_800_000_000 + int64(i), Identity: uint32(256 + i%1000), Node: nodeAddr(node),
		Host: fmt.Sprint("node-", node), Addrs: []netip.Addr{netip.AddrFrom4(base)}})
}
