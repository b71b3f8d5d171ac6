package node_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// On a node that translates sockets, the sockets of a sandboxed pod have no such programs: its packets are translated instead, while other pods are translated
// at their sockets.
func (m *serviceFixture) sandboxedPods(t *testing.T, _ bool) {
	inside, sandboxed := m.pod(t, "inside"), m.pod(t, "sandboxed")
	places := []struct {
		nodekit.NetNS
		pod     *nodekit.Pod
		packets bool // packets are translated
	}{{inside, inside, false}, {sandboxed.Sandboxed(), sandboxed, true}, {inside.Sandboxed(), inside, true}}
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.backends(t, "one", "two")
	ways := func(f func(network string, to netip.AddrPort)) {
		each(webAddrs, 80, f)
		each(uplinks, webNodePort, f)
	}
	ways(func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 2)
	})
	for i, from := range places {
		ways(func(network string, to netip.AddrPort) {
			m.reaches(t, from, network, to, "one", "two")
			m.seesClient(t, from, network, to, from.pod.Addr(to.Addr().Is6()))
		})
		flows, err := m.Waggle(t.Context(), "bpf", "nat", "list", "--service", "shop/web")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if got := strings.Contains(flows, from.pod.Addr(f.ipv6).String()); got != from.packets {
				t.Errorf("place %d: %s has flows that packets translate: %t, want %t:\n%s", i, from.pod.Addr(f.ipv6), got, from.packets, flows)
			}
		}
	}
	// A backend whose stack sends a request may be selected itself.
	ways(func(network string, to netip.AddrPort) {
		m.reaches(t, m.pods["one"].Sandboxed(), network, to, "one", "two")
	})

	// Datagrams of a sandboxed pod get another backend when theirs is removed. Without any backend, all are rejected.
	all := lines(t, sandboxed.Sandboxed(), 80, webAddrs, 4)
	m.backends(t, "two")
	for _, l := range all {
		switch {
		case l.network == "udp":
			eventually(t, func() error {
				a, err := requestWithin(l.Conn, briefTimeout)
				if err == nil && a.server != "two" {
					err = fmt.Errorf("%s answers, which is no backend any more", a.server)
				}
				return err
			})
		case l.server == "two":
			if now := l.request(t); now != "two" {
				t.Errorf("%s over %s went from two to %s", l.to, l.network, now)
			}
		}
	}
	m.backends(t)
	ways(func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 0)
		for _, from := range places {
			m.rejected(t, from, network, to)
		}
	})
}
