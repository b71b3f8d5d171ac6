package node_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// An annotation selects the algorithm of a Service. With Maglev, each new selection for a client outside with the same source port returns the same backend,
// and other source ports get other backends. With random selection, the client gets another backend sooner or later.
func TestPrivilegedService_AlgorithmByAnnotation(t *testing.T) {
	t.Parallel()
	m := newServiceFixture(t, "--bpf-lb-algorithm-annotation", "--bpf-lb-maglev-table-size=251", "--bpf-lb-maglev-map-max=8")
	annotated := func(algorithm string) {
		t.Helper()
		m.write(t, "web-service.yaml", fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web, "+
			"annotations: {service.cilium.io/lb-algorithm: %s}}, spec: {%s}}\n", algorithm, webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster")))
		for _, addr := range uplinks {
			m.hasFlag(t, netip.AddrPortFrom(addr, webNodePort), "maglev", algorithm == "maglev")
		}
	}
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.backends(t, "one", "two", "three")
	for _, addr := range uplinks {
		m.hasFlag(t, netip.AddrPortFrom(addr, webNodePort), "maglev", false)
	}
	const clients = 12 // the same of three backends for all by chance has a probability below 10^-5
	annotated("maglev")
	for _, addr := range uplinks {
		to, all := netip.AddrPortFrom(addr, webNodePort), map[string]bool{}
		for port := uint16(7000); port < 7000+clients; port++ {
			first := m.chosen(t, to, port)
			all[first] = true
			for range times(t, 1, 3) {
				if again := m.chosen(t, to, port); again != first {
					t.Errorf("%s: from port %d the client came to %s, and then to %s", to, port, first, again)
				}
			}
		}
		if len(all) < 2 {
			t.Errorf("%s: %d clients came to %v", to, clients, all)
		}
	}
	annotated("random")
	for _, addr := range uplinks {
		to, all := netip.AddrPortFrom(addr, webNodePort), map[string]bool{}
		for range 100 {
			if all[m.chosen(t, to, 7000)] = true; len(all) > 1 {
				break
			}
		}
		if len(all) < 2 {
			t.Errorf("%s: at random one client came to %v only", to, all)
		}
	}
}

// chosen returns the backend that is selected for a datagram from outside after all flows of the service were removed.
func (m *serviceFixture) chosen(t *testing.T, to netip.AddrPort, port uint16) string {
	t.Helper()
	if _, err := m.Waggle(t.Context(), "bpf", "nat", "flush", "--service", "shop/web", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	a, err := requestWith(t.Context(), m.OutsideHost(), &net.Dialer{LocalAddr: &net.UDPAddr{Port: int(port)}}, "udp", to)
	if err != nil {
		t.Fatalf("%s from port %d: %v", to, port, err)
	}
	return a.server
}

// hasFlag waits until the kernel serves an address with a flag, or without it, over TCP and UDP.
func (m *serviceFixture) hasFlag(t *testing.T, at netip.AddrPort, flag string, want bool) {
	t.Helper()
	eventually(t, func() error {
		text, err := m.Waggle(t.Context(), "bpf", "lb", "list", "--frontends", "-o", "json")
		if err != nil {
			return err
		}
		var have struct {
			Frontends []struct {
				Addr  netip.Addr
				Port  uint16
				Flags []string
			}
		}
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&have); err != nil {
			return err
		}
		n := 0
		for _, f := range have.Frontends {
			if f.Addr == at.Addr() && f.Port == at.Port() && slices.Contains(f.Flags, flag) == want {
				n++
			}
		}
		if n != len(networks) {
			return fmt.Errorf("%s: flag %s is to be %t: %s", at, flag, want, text)
		}
		return nil
	})
}
