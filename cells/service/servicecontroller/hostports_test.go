package servicecontroller

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestHostPort_ManyOfOnePod: tenants choose the number of host ports of a pod, so the cost of one host port must not depend on the number of others. The test
// is not parallel, because AllocsPerRun counts the allocations of all goroutines.
func TestHostPort_ManyOfOnePod(t *testing.T) {
	cost := func(count int) float64 {
		b := newBench(t, DefaultConfig, &fakeIDs{})
		pod := &k8s.Pod{Namespace: "a", Name: "p", UID: "u", Phase: "Running", PodIPs: ips("10.1.0.1")}
		for i := range count {
			pod.HostPorts = append(pod.HostPorts, k8s.HostPort{Protocol: "TCP", Port: uint16(11_000 + i), Container: 80})
		}
		b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true}, pod)
		b.state(sources.Synced)
		b.step()
		require.Equal(t, 2*count, b.c.Frontends.NumObjects(b.db.ReadTxn()))
		txn := b.db.ReadTxn()
		return testing.AllocsPerRun(10, func() { require.NotNil(t, b.c.compute(txn, b.c.world, hostPortName(pod, 11_000), nil, nil)) })
	}
	require.LessOrEqual(t, cost(500), cost(5))
}
