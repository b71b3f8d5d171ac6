package services

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestRun_IsAliveInALongPass: a first pass on a busy node takes minutes. It is none that hangs, and the agent is not started anew for it.
func TestRun_IsAliveInALongPass(t *testing.T) {
	t.Parallel()
	b, m := newBench(t, DefaultConfig, &fakeIDs{}), heartbeat.NewMonitor()
	b.state(sources.Synced)
	for i := range byte(50) {
		b.insert(&k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: "ClusterIP", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, i})},
			Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	}
	b.c.portion = 1
	var took time.Duration
	var wedges []heartbeat.Wedge
	b.commits.seen = func() {
		took += 2 * time.Second
		if now := m.Step(2*time.Second, b.db.ReadTxn()); len(now) > 0 {
			wedges = now
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // after the first pass
	ctx, end := heartbeat.Begin(ctx, heartbeat.NewGroup(nil, m, cell.FullModuleID{"services"}), "compute-services")
	defer end()
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, b.c.run(ctx, health))
	require.Greater(t, took, 90*time.Second)
	require.Empty(t, wedges)
}

// TestPass_ThatFindsMoreWorkIsNoProof: services that have each other computed again without end would hang.
func TestPass_ThatFindsMoreWorkIsNoProof(t *testing.T) {
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
	b.c.in.read(txn, changed, b.c.concern)
	require.NoError(t, b.c.pass(txn, changed)) // concerns all others
	require.Equal(t, 1, marks)
}
