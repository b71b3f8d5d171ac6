package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
)

// distant holds backends on another node: addresses of the host outside, whose server replies with the name of the requested backend.
type distant struct{ addrs map[string][2]netip.Addr }

// newDistant creates n backends, the same ones for each of the nodes.
func newDistant(t *testing.T, n int, nodes ...*serviceFixture) (d distant) {
	t.Helper()
	d.addrs = make(map[string][2]netip.Addr)
	for i := range n {
		d.addrs[fmt.Sprintf("b%d", i)] = [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", 100+i))}
	}
	for _, m := range nodes {
		for name, pair := range d.addrs {
			for i, addr := range pair {
				prefix := netip.PrefixFrom(addr, []int{24, 64}[i])
				if err := m.Outside(func() error { return addAddr("eth0", prefix) }); err != nil {
					t.Fatal(err)
				}
				replyAt(t, m.OutsideHost(), netip.AddrPortFrom(addr, 8080), name)
			}
		}
	}
	return d
}

// listenDatagrams opens a UDP port at a place until the test ends.
func listenDatagrams(t *testing.T, at nodekit.NetNS, addr netip.AddrPort) (conn *net.UDPConn) {
	t.Helper()
	if err := at.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// replyAt replies at one address with a name.
func replyAt(t *testing.T, at nodekit.NetNS, addr netip.AddrPort, name string) {
	t.Helper()
	conn := listenDatagrams(t, at, addr)
	go func() {
		buffer := make([]byte, 2048)
		for {
			_, client, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return // closed
			}
			_, _ = conn.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s\n", name, client.Addr().Unmap()), client)
		}
	}()
}

// serve makes all backends except one the endpoints of "web" on a node.
func (d distant) serve(t *testing.T, m *serviceFixture, without string) {
	t.Helper()
	var all strings.Builder
	for i, f := range families {
		var endpoints []string
		for name, pair := range d.addrs {
			if name != without {
				endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], nodeName: node-2}", pair[i]))
			}
		}
		fmt.Fprintf(&all, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: web-%d, "+
			"labels: {kubernetes.io/service-name: web}}, addressType: %s, ports: %s, endpoints: [%s]}\n", i, f.name, webPorts, strings.Join(endpoints, ", "))
	}
	m.write(t, "web-slices.yaml", all.String())
	n := len(d.addrs)
	if without != "" {
		n--
	}
	for _, addr := range uplinks {
		m.ready(t, netip.AddrPortFrom(addr, webNodePort), n)
	}
}

// choices returns the backends that are selected for the source ports of a client outside after all flows of the service were removed.
func (m *serviceFixture) choices(t *testing.T, to netip.AddrPort, ports int) []string {
	t.Helper()
	if _, err := m.Waggle(t.Context(), "bpf", "nat", "flush", "--service", "shop/web", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	out := make([]string, ports)
	for i := range out {
		a, err := requestFrom(m.OutsideHost(), netip.AddrPortFrom(outsideAddr(to.Addr().Is6()), 20000+uint16(i)), to)
		if err != nil {
			t.Fatalf("%s from port %d: %v", to, 20000+i, err)
		}
		out[i] = a.server
	}
	return out
}

// requestFrom sends a datagram from a given address and port.
func requestFrom(at nodekit.NetNS, from, to netip.AddrPort) (served, error) {
	return requestWith(context.Background(), at, &net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(from)}, "udp", to)
}

// Two nodes with Maglev select the same backend for each client outside, at either node. When a backend is removed, its clients get other backends, again the
// same at both nodes, and few other clients change their backend.
func TestPrivilegedService_MaglevOnTwoNodes(t *testing.T) {
	t.Parallel()
	const ports, backends = 100, 5
	args := []string{"--bpf-lb-algorithm=maglev", "--bpf-lb-maglev-table-size=509"}
	one, two := newServiceFixture(t, args...), newServiceFixture(t, args...)
	d := newDistant(t, backends, one, two)
	for _, m := range []*serviceFixture{one, two} {
		m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
		d.serve(t, m, "")
	}
	for _, addr := range uplinks {
		to := netip.AddrPortFrom(addr, webNodePort)
		d.serve(t, one, "")
		d.serve(t, two, "")
		before := one.choices(t, to, ports)
		if there := two.choices(t, to, ports); !sameChoices(before, there) {
			t.Errorf("%s: the nodes choose %v and %v", to, before, there)
		}
		met := make(map[string]int)
		for _, name := range before {
			met[name]++
		}
		if len(met) != backends {
			t.Errorf("%s: %d clients came to %v", to, ports, met)
		}
		gone := before[0]
		d.serve(t, one, gone)
		d.serve(t, two, gone)
		after := one.choices(t, to, ports)
		if there := two.choices(t, to, ports); !sameChoices(after, there) {
			t.Errorf("%s: without %s the nodes choose %v and %v", to, gone, after, there)
		}
		moved, stayed := 0, 0
		for i := range before {
			switch {
			case after[i] == gone:
				t.Errorf("%s: client %d still comes to %s", to, i, gone)
			case before[i] == gone:
			case before[i] == after[i]:
				stayed++
			default:
				moved++
			}
		}
		if moved > stayed/4 { // with random selection three of four would move
			t.Errorf("%s: without %s %d clients of others moved and %d stayed", to, gone, moved, stayed)
		}
	}
}

func sameChoices(a, b []string) bool { return strings.Join(a, " ") == strings.Join(b, " ") }

// Clients outside keep their backends, on this node and on others, from any source port, each with its own backend, until the timeout of the service has passed
// since their last packet.
func TestPrivilegedService_AffinityFromOutside(t *testing.T) {
	t.Parallel()
	m := newServiceFixture(t)
	d := newDistant(t, 4, m)
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster")+
		", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 3600}}")
	d.serve(t, m, "")
	for i, addr := range uplinks {
		to, port := netip.AddrPortFrom(addr, webNodePort), uint16(30000)
		meets := func(client netip.Addr) string {
			t.Helper()
			port++ // a new flow
			a, err := requestFrom(m.OutsideHost(), netip.AddrPortFrom(client, port), to)
			if err != nil {
				t.Fatalf("%s from %s: %v", to, client, err)
			}
			return a.server
		}
		clients, first := d.addrs["b0"], make(map[netip.Addr]string)
		others := []netip.Addr{outsideAddr(i == 1), clients[i]}
		for _, client := range others {
			first[client] = meets(client)
		}
		for range 12 { // chance would do so once in ten million times
			for _, client := range others {
				if again := meets(client); again != first[client] {
					t.Errorf("%s: %s met %s, and then %s", to, client, first[client], again)
				}
			}
		}
		m.age(t, 3540) // the rest is for slow requests
		for _, client := range others {
			if again := meets(client); again != first[client] {
				t.Errorf("%s: %s met %s, and before the time had run out %s", to, client, first[client], again)
			}
		}
		client, changed := others[0], false
		for range 60 { // the same backend each time has a probability below 10^-30
			m.age(t, 3602)
			if changed = meets(client) != first[client]; changed {
				break
			}
		}
		if !changed {
			t.Errorf("%s: %s meets %s for ever", to, client, first[client])
		}
	}
}

// age sets back the last use of all clients by some seconds.
func (m *serviceFixture) age(t *testing.T, seconds int) {
	t.Helper()
	affinities := ctMap(t, m.Node, bpf.MapAffinity)
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	// The collector may delete entries of this age at any moment.
	aged := make(map[bpf.AffinityKey]bpf.AffinityEntry)
	eventually(t, func() error {
		var key bpf.AffinityKey
		var entry bpf.AffinityEntry
		clear(aged)
		all := affinities.Iterate()
		for all.Next(&key, &entry) {
			entry.Used = now - bpf.CtTicks(time.Duration(seconds)*time.Second)
			aged[key] = entry
		}
		return all.Err()
	})
	for key, entry := range aged {
		if err := affinities.Update(&key, &entry, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
}
