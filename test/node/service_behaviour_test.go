package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The properties of Services and their slices that select backends apply to real clients: policies, readiness, hints, and the proxy of a Service.
func TestPrivilegedService_BackendSelection(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m := newStoppedServiceFixture(t, mode.args...)
			m.inZone(t, "here")
			m.start(t)
			clients := []nodekit.NetNS{m.pod(t, "client")}
			if !mode.packets {
				clients = append(clients, m.Host())
			}
			for _, name := range []string{"one", "two", "three"} {
				m.pod(t, name, 8080)
			}
			for _, c := range []struct {
				name, spec string
				endpoints  []endpoint
				want       []string // none: requests are rejected
			}{
				{"policy Cluster", "", []endpoint{{pod: "one"}, {pod: "two", node: "node-2"}}, []string{"one", "two"}},
				{"policy Local", ", internalTrafficPolicy: Local", []endpoint{{pod: "one"}, {pod: "two", node: "node-2"}}, []string{"one"}},
				{"policy Local, the one here is not ready and ends", ", internalTrafficPolicy: Local",
					[]endpoint{{"one", "", "conditions: {ready: false, serving: true, terminating: true}"}, {pod: "two", node: "node-2"}}, []string{"one"}},
				{"not ready", "", []endpoint{{"one", "", "conditions: {ready: false}"}, {pod: "two"}}, []string{"two"}},
				{"no backend is ready", "", []endpoint{{"one", "", "conditions: {ready: false}"}}, nil},
				{"no backend is ready, and all are published", ", publishNotReadyAddresses: true", []endpoint{{"one", "", "conditions: {ready: false}"}}, []string{"one"}},
				{"some end", "", []endpoint{{"one", "", "conditions: {ready: false, serving: true, terminating: true}"}, {pod: "three"}}, []string{"three"}},
				{"all end", "", []endpoint{{"one", "", "conditions: {ready: false, serving: true, terminating: true}"},
					{"two", "", "conditions: {ready: false, serving: false, terminating: true}"}}, []string{"one"}},
				{"all have ended", "", []endpoint{{"two", "", "conditions: {ready: false, serving: false, terminating: true}"}}, nil},
				{"hints for zones", ", trafficDistribution: PreferClose", []endpoint{{"one", "", "zone: there, hints: {forZones: [{name: there}]}"},
					{"two", "", "zone: here, hints: {forZones: [{name: here}]}"}}, []string{"two"}},
				{"hints for other zones only", ", trafficDistribution: PreferClose", []endpoint{{"one", "", "zone: there, hints: {forZones: [{name: there}]}"},
					{"two", "", "zone: far, hints: {forZones: [{name: far}]}"}}, []string{"one", "two"}},
				{"one without a hint", ", trafficDistribution: PreferClose", []endpoint{{pod: "one"}, {"two", "", "zone: here, hints: {forZones: [{name: here}]}"}},
					[]string{"one", "two"}},
				{"hints for nodes", ", trafficDistribution: PreferSameNode", []endpoint{{"one", "node-2", "hints: {forZones: [{name: here}], forNodes: [{name: node-2}]}"},
					{"two", "", "hints: {forZones: [{name: here}], forNodes: [{name: node-1}]}"}}, []string{"two"}},
			} {
				t.Run(c.name, func(t *testing.T) {
					m.service(t, "web", webSpec+c.spec)
					m.slices(t, "web", webPorts, c.endpoints...)
					for _, addr := range webAddrs {
						m.ready(t, netip.AddrPortFrom(addr, 80), len(c.want))
					}
					m.repliesFromAll(t, clients, c.want...)
				})
			}
			m.localOnOtherNode(t, clients)
			m.anothers(t, clients)
			m.headless(t)
		})
	}
}

// inZone sets the zone of the node, whose agent does not run yet.
func (m *serviceFixture) inZone(t *testing.T, zone string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.ManifestsDir(), "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "node.yaml", strings.Replace(string(text), "metadata:\n", "metadata:\n  labels: {topology.kubernetes.io/zone: "+zone+"}\n", 1))
}

// repliesFromAll requires that exactly these servers reply to the clients of "web"; without servers, that requests are rejected.
func (m *serviceFixture) repliesFromAll(t *testing.T, clients []nodekit.NetNS, servers ...string) {
	t.Helper()
	each(webAddrs, 80, func(network string, to netip.AddrPort) {
		if len(servers) > 0 { // the service may have had the same number of other servers
			eventually(t, func() error {
				if a, err := requestBriefly(t.Context(), clients[0], network, to); err != nil || !slices.Contains(servers, a.server) {
					return fmt.Errorf("ask %s over %s: %q answers (%w), want one of %v", to, network, a.server, err, servers)
				}
				return nil
			})
		}
		for _, client := range clients {
			if len(servers) == 0 {
				m.rejected(t, client, network, to)
			} else {
				m.reaches(t, client, network, to, servers...)
			}
		}
	})
}

// localOnOtherNode: with the policy Local, a client on this node gets no reply from backends of other nodes, and gets one from a new backend on this node.
func (m *serviceFixture) localOnOtherNode(t *testing.T, clients []nodekit.NetNS) {
	t.Helper()
	m.service(t, "web", webSpec+", internalTrafficPolicy: Local")
	m.slices(t, "web", webPorts, endpoint{pod: "one", node: "node-2"})
	for _, addr := range webAddrs {
		m.ready(t, netip.AddrPortFrom(addr, 80), 0)
	}
	each(webAddrs, 80, func(network string, to netip.AddrPort) {
		m.getsNoReply(t, clients[0], network, to)
		for _, client := range clients[1:] { // the node, which has no link on which a packet could be lost
			if _, err := request(t.Context(), client, network, to); !errors.Is(err, syscall.EPERM) {
				t.Errorf("%s over %s with its backend elsewhere: %v, want EPERM", to, network, err)
			}
		}
	})
	m.slices(t, "web", webPorts, endpoint{pod: "one", node: "node-2"}, endpoint{pod: "two"})
	for _, addr := range webAddrs {
		m.ready(t, netip.AddrPortFrom(addr, 80), 1)
	}
	m.repliesFromAll(t, clients, "two")
}

// anothers: a Service of another proxy is not served, and is served again when its label is removed.
func (m *serviceFixture) anothers(t *testing.T, clients []nodekit.NetNS) {
	t.Helper()
	for _, other := range []bool{true, false} {
		labels := ""
		if other {
			labels = ", labels: {service.kubernetes.io/service-proxy-name: other}"
		}
		m.write(t, "web-service.yaml", fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web%s}, spec: {%s}}\n", labels, webSpec))
		for _, addr := range webAddrs {
			if to := netip.AddrPortFrom(addr, 80); other {
				m.gone(t, to)
			} else {
				m.ready(t, to, 2)
			}
		}
		if !other {
			m.repliesFromAll(t, clients, "one", "two")
			continue
		}
		each(webAddrs, 80, func(network string, to netip.AddrPort) {
			for _, client := range clients {
				if a, err := requestBriefly(t.Context(), client, network, to); err == nil {
					t.Errorf("%s over %s is another proxy's, and answers: %+v", to, network, a)
				}
			}
		})
	}
}

// headless: a Service without an address has no frontend, regardless of its slices; other Services are served as before.
func (m *serviceFixture) headless(t *testing.T) {
	t.Helper()
	m.service(t, "bare", "clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4, IPv6], ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]")
	m.slices(t, "bare", webPorts, endpoint{pod: "one"})
	m.service(t, "later", strings.NewReplacer("10.96.0.10", "10.96.0.11", "::10", "::11").Replace(webSpec))
	m.slices(t, "later", webPorts, endpoint{pod: "three"})
	for _, to := range []string{"10.96.0.11:80", "[fd00:10:96::11]:80"} { // the earlier Service is served as well
		m.ready(t, netip.MustParseAddrPort(to), 1)
		for _, network := range networks {
			m.reaches(t, m.pods["client"], network, netip.MustParseAddrPort(to), "three")
		}
	}
	for _, table := range []string{"services", "frontends"} {
		if text, err := m.Waggle(t.Context(), "db", "show", table); err != nil || strings.Contains(text, "shop/bare") {
			t.Errorf("%s (%v):\n%s", table, err, text)
		}
	}
	for _, network := range networks {
		for _, f := range families {
			m.reaches(t, m.pods["client"], network, netip.AddrPortFrom(m.pods["one"].Addr(f.ipv6), 8080), "one")
		}
	}
}

// With --service-no-backend-response=drop, clients of a Service without backends get no reply, outside and in pods.
func TestPrivilegedService_NoBackends_DropsSilently(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m := newServiceFixture(t, append([]string{"--service-no-backend-response=drop"}, mode.args...)...)
			client := m.pod(t, "client")
			m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
			m.backends(t)
			for _, addr := range uplinks {
				m.ready(t, netip.AddrPortFrom(addr, webNodePort), 0)
			}
			var all sync.WaitGroup // the missing reply takes the whole timeout
			all.Go(func() {
				each(webAddrs, 80, func(network string, to netip.AddrPort) { m.getsNoReply(t, client, network, to) })
			})
			for _, from := range []nodekit.NetNS{client, m.OutsideHost()} {
				all.Go(func() {
					each(uplinks, webNodePort, func(network string, to netip.AddrPort) { m.getsNoReply(t, from, network, to) })
				})
			}
			all.Wait()
			m.backends(t, "one")
			m.repliesFromAll(t, []nodekit.NetNS{client}, "one")
		})
	}
}
