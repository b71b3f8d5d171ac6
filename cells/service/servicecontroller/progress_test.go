package servicecontroller

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestRun_LongPass_IsNoStall: a first pass on a busy node takes minutes. It does not count as a stall, so the agent is not restarted.
func TestRun_LongPass_IsNoStall(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Synced)
	for i := range byte(50) {
		b.insert(&k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: "ClusterIP", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, i})},
			Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	}
	b.c.portion = 1
	pass := celltest.NewLongPass(b.db)
	b.commits.onCommit = pass.Piece
	require.Greater(t, pass.Run(t, b.c.run), 90*time.Second)
}

// TestPass_QueuedServices_ReportNoProgress: services that queue each other without end are a stall, so services that a pass queues report no progress.
func TestPass_QueuedServices_ReportNoProgress(t *testing.T) {
	t.Parallel()
	b, marks := newBench(t, DefaultConfig, &fakeIDs{}), 0
	b.c.alive = func() { marks++ }
	b.state(sources.Synced)
	shared := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	for i := range byte(10) {
		b.insert(&k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: "ClusterIP", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, i})},
			ExternalIPs: []netip.Addr{shared}, Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	}
	b.step()
	require.GreaterOrEqual(t, marks, 10)
	marks = 0
	b.insert(&k8s.Service{Namespace: "d", Name: "t", Type: "ClusterIP", ClusterIPs: []netip.Addr{shared}, Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	txn, changed := b.db.ReadTxn(), statedb.NewWatchSet()
	b.c.read(txn, changed)
	done, err := b.c.pass(txn, changed)
	require.NoError(t, err)
	require.Equal(t, 11, done.models) // all other services as well
	require.Equal(t, 1, marks)
}
