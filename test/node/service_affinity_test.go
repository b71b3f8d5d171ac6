package node_test

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Clients on this node keep their backends for the timeout of the service after their last new connection, at their sockets and by packets. After the timeout
// they are balanced like new clients, over TCP and UDP.
func (m *serviceFixture) affinitiesExpire(t *testing.T, packets bool) {
	clients := []nodekit.NetNS{m.pod(t, "client")}
	if !packets {
		clients = append(clients, m.Host())
	}
	m.web(t, ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 3600}}", "one", "two", "three")
	for _, client := range clients {
		for _, addr := range webAddrs {
			for _, network := range networks {
				m.affinityExpires(t, client, network, netip.AddrPortFrom(addr, 80))
			}
		}
	}
}

func (m *serviceFixture) affinityExpires(t *testing.T, client nodekit.NetNS, network string, to netip.AddrPort) {
	t.Helper()
	meets := func() string {
		t.Helper()
		a, err := request(t.Context(), client, network, to)
		if err != nil {
			t.Fatalf("ask %s over %s: %v", to, network, err)
		}
		return a.server
	}
	first := meets()
	for range 12 { // chance would do so once in half a million times
		m.age(t, 3540) // the rest is for a slow request
		if again := meets(); again != first {
			t.Fatalf("%s over %s: %s answers before the time has run out, and before %s did", to, network, again, first)
		}
	}
	for range 90 { // the same backend each time has a probability below 10^-40
		m.age(t, 3602)
		if meets() != first {
			return
		}
	}
	t.Errorf("%s over %s: %s answers for ever", to, network, first)
}
