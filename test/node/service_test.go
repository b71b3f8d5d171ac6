package node_test

import (
	"net/netip"
	"testing"
)

// Addresses of the service "web".
var webAddrs = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}

const webSpec = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, \"fd00:10:96::10\"], ipFamilies: [IPv4, IPv6], " +
	"ports: [{name: tcp, port: 80, targetPort: 8080, protocol: TCP}, {name: udp, port: 80, targetPort: 8080, protocol: UDP}]"

const webPorts = "[{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]"

// A pod whose sockets no program translates reaches the backends of a service: others, and itself.
func TestPrivilegedService_ClusterIPFromPods(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.pod(t, "one", 8080)
	m.pod(t, "two", 8080)
	client := m.pod(t, "client")
	m.service(t, "web", webSpec)
	m.slices(t, "web", webPorts, endpoint{pod: "one"}, endpoint{pod: "two"})
	for _, addr := range webAddrs {
		to := netip.AddrPortFrom(addr, 80)
		for _, network := range []string{"tcp", "udp"} {
			m.served(t, to.String()+"/"+map[string]string{"tcp": "TCP", "udp": "UDP"}[network], 2)
			m.reaches(t, client, network, to, "one", "two")
			a, err := ask(t.Context(), client, network, to)
			if err != nil || a.client != client.Addr(addr.Is6()) {
				t.Errorf("%s over %s: the server sees %v (%v), want the client's own address %v", to, network, a.client, err, client.Addr(addr.Is6()))
			}
			m.reaches(t, m.pods["one"], network, to, "one", "two")
		}
	}
}
