package node_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// busyServiceFixture returns a fixture with traffic through its services on every path, and this traffic.
func busyServiceFixture(t *testing.T, packets bool, args ...string) (*serviceFixture, *load.Load) {
	t.Helper()
	m := newServiceFixture(t, args...)
	client, one := m.pod(t, "client"), m.pod(t, "one")
	m.routePublic(t)
	m.write(t, "web-service.yaml", "{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {"+webRest+", type: LoadBalancer, ports: ["+
		"{name: tcp-pod, port: 80, targetPort: 8080, protocol: TCP}, {name: udp-pod, port: 80, targetPort: 8080, protocol: UDP}, "+
		"{name: tcp-out, port: 81, targetPort: 8081, protocol: TCP, nodePort: 30081}, {name: udp-out, port: 81, targetPort: 8081, protocol: UDP, nodePort: 30081}, "+
		"{name: tcp-node, port: 82, targetPort: 8082, protocol: TCP}, {name: udp-node, port: 82, targetPort: 8082, protocol: UDP}, "+
		"{name: tcp-lb, port: 83, targetPort: 8083, protocol: TCP}, {name: udp-lb, port: 83, targetPort: 8083, protocol: UDP}]}, "+
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: \"2001:db8:113::10\"}]}}}\n")
	m.slices(t, "web", "[{name: tcp-pod, port: 8080, protocol: TCP}, {name: udp-pod, port: 8080, protocol: UDP}, "+
		"{name: tcp-out, port: 8081, protocol: TCP}, {name: udp-out, port: 8081, protocol: UDP}, "+
		"{name: tcp-node, port: 8082, protocol: TCP}, {name: udp-node, port: 8082, protocol: UDP}, "+
		"{name: tcp-lb, port: 8083, protocol: TCP}, {name: udp-lb, port: 8083, protocol: UDP}]", endpoint{pod: "one"})
	m.far(t)
	var paths []load.Path
	for i, f := range families {
		cluster, node := webAddrs[i], uplinkAddr(f.ipv6)
		paths = append(paths,
			load.Path{Name: "pod to service " + f.name, From: client, To: one, Addr: one.Addr(f.ipv6), Port: 8080, Service: netip.AddrPortFrom(cluster, 80)},
			load.Path{Name: "outside to node port " + f.name, From: m.OutsideHost(), To: one, Addr: one.Addr(f.ipv6), Port: 8081, Service: netip.AddrPortFrom(node, 30081)},
			load.Path{Name: "pod to outside " + f.name, From: client, To: m.OutsideHost(), Addr: outsideAddr(f.ipv6)},
			load.Path{Name: "outside to load balancer " + f.name, From: m.OutsideHost(), To: one, Addr: one.Addr(f.ipv6), Port: 8083, Service: netip.AddrPortFrom(balancerAddrs[i], 83)},
			load.Path{Name: "outside to node port to elsewhere " + f.name, From: m.OutsideHost(), To: m.OutsideHost(), Addr: outsideAddr(f.ipv6), Port: 8084,
				Service: netip.AddrPortFrom(node, 30084)})
		m.ready(t, netip.AddrPortFrom(balancerAddrs[i], 83), 1)
		m.ready(t, netip.AddrPortFrom(node, 30084), 1)
		m.ready(t, netip.AddrPortFrom(cluster, 80), 1)
		m.ready(t, netip.AddrPortFrom(cluster, 82), 1)
		m.ready(t, netip.AddrPortFrom(node, 30081), 1)
		if !packets {
			paths = append(paths, load.Path{Name: "node to service " + f.name, From: m.Host(), To: one, Addr: one.Addr(f.ipv6), Port: 8082,
				Service: netip.AddrPortFrom(cluster, 82)})
		}
	}
	return m, load.StartFor(t, load.Rates{Connections: 24, Messages: 72, Datagrams: 600, Connects: 24, Lies: 1}, paths, nil)
}

// far creates a service whose backend is on another node, which is the host outside.
func (m *serviceFixture) far(t *testing.T) {
	t.Helper()
	m.service(t, "far", "clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12, \"fd00:10:96::12\"], ipFamilies: [IPv4, IPv6], type: NodePort, ports: ["+
		"{name: tcp, port: 84, targetPort: 8084, protocol: TCP, nodePort: 30084}, {name: udp, port: 84, targetPort: 8084, protocol: UDP, nodePort: 30084}]")
	m.slicesOutside(t, "far", "[{name: tcp, port: 8084, protocol: TCP}, {name: udp, port: 8084, protocol: UDP}]")
}

// requireUndisturbed ends the traffic and requires that none of it was lost.
func requireUndisturbed(t *testing.T, use *load.Load) {
	t.Helper()
	r := ended(t, use)
	if err := r.Err(); err != nil {
		t.Errorf("traffic was disturbed:\n%v", err)
	}
	if r.TCP.Messages == 0 || r.UDP.Sent == 0 || r.Connects.Done == 0 {
		t.Error("nothing was sent")
	}
}

// An agent that stops or is killed, and starts again, does not interrupt clients of services or connections to the outside under the node's address: neither
// open connections nor new ones.
func TestPrivilegedService_RestartLosesNoPacket(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m, use := busyServiceFixture(t, mode.packets, mode.args...)
			for range soak(t) {
				for _, end := range []func(context.Context) error{m.StopAgent, m.KillAgent} {
					if err := errors.Join(end(t.Context()), m.StartAgent()); err != nil {
						t.Fatal(err)
					}
					waitReady(t, m.Node)
				}
			}
			requireUndisturbed(t, use)
		})
	}
}

// An agent of another generation of the datapath does not interrupt them either, in both directions.
func TestPrivilegedService_UpgradeLosesNoPacket(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	other, err := builds.Agent(nodekit.Build{Generation: otherGeneration})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m, use := busyServiceFixture(t, mode.packets, mode.args...)
			for range soak(t) {
				for _, to := range []struct {
					agent      string
					generation int
				}{{other, otherGeneration}, {"", thisGeneration}} {
					if err := m.UpgradeAgent(t.Context(), to.agent); err != nil {
						t.Fatal(err)
					}
					requireGeneration(t, m.Node, to.generation)
				}
			}
			requireUndisturbed(t, use)
		})
	}
}
