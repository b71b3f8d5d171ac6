package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Addresses of the service "web".
var webAddrs = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}

const webSpec = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, \"fd00:10:96::10\"], ipFamilies: [IPv4, IPv6], " +
	"ports: [{name: tcp, port: 80, targetPort: 8080, protocol: TCP}, {name: udp, port: 80, targetPort: 8080, protocol: UDP}]"

const webPorts = "[{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]"

// web creates the service "web" with pods that serve it, and waits until the datapath has all of it.
func (m *serviceFixture) web(t *testing.T, spec string, pods ...string) {
	t.Helper()
	m.service(t, "web", webSpec+spec)
	m.backends(t, pods...)
}

// backends makes pods the endpoints of "web", and waits until the datapath has them.
func (m *serviceFixture) backends(t *testing.T, pods ...string) {
	t.Helper()
	var all []endpoint
	for _, pod := range pods {
		if m.pods[pod] == nil {
			m.pod(t, pod, 8080)
		}
		all = append(all, endpoint{pod: pod})
	}
	m.slices(t, "web", webPorts, all...)
	for _, addr := range webAddrs {
		for _, network := range networks {
			protocol := "/" + strings.ToUpper(network)
			var servers []string
			for _, pod := range pods {
				servers = append(servers, netip.AddrPortFrom(m.pods[pod].Addr(addr.Is6()), 8080).String()+protocol)
			}
			m.servedBy(t, netip.AddrPortFrom(addr, 80).String()+protocol, servers)
		}
	}
}

// Pods reach the backends of a service under their own address. A backend may reach itself. Where sockets are translated, the node reaches the backends too.
// Requests to a service without endpoints are rejected at once, and a deleted service is not served.
func (m *serviceFixture) clusterIP(t *testing.T, packets bool) {
	client := m.pod(t, "client")
	m.web(t, "", "one", "two")
	for _, addr := range webAddrs {
		to := netip.AddrPortFrom(addr, 80)
		for _, network := range networks {
			m.reaches(t, client, network, to, "one", "two")
			m.reaches(t, m.pods["one"], network, to, "one", "two")
			a, err := request(t.Context(), client, network, to)
			if err != nil || a.client != client.Addr(addr.Is6()) {
				t.Errorf("%s over %s: the server sees %v (%v), want the client's own address %v", to, network, a.client, err, client.Addr(addr.Is6()))
			}
			if !packets {
				m.reaches(t, m.Host(), network, to, "one", "two")
			}
		}
	}
	m.backends(t)
	for _, addr := range webAddrs {
		for _, network := range networks {
			m.rejected(t, client, network, netip.AddrPortFrom(addr, 80))
			if !packets {
				m.rejected(t, m.Host(), network, netip.AddrPortFrom(addr, 80))
			}
		}
	}
	m.backends(t, "two")
	for _, addr := range webAddrs {
		for _, network := range networks {
			m.reaches(t, client, network, netip.AddrPortFrom(addr, 80), "two")
		}
	}
	if err := os.Remove(filepath.Join(m.ManifestsDir(), "web-service.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, addr := range webAddrs {
		m.gone(t, netip.AddrPortFrom(addr, 80))
	}
	each(webAddrs, 80, func(network string, to netip.AddrPort) {
		if a, err := requestBriefly(t.Context(), client, network, to); err == nil {
			t.Errorf("%s of a deleted service answers over %s: %+v", to, network, a)
		}
	})
}

// line is a connection that stays open.
type line struct {
	net.Conn
	network string
	to      netip.AddrPort
	server  string
}

// lines opens connections from a place to all addresses.
func lines(t *testing.T, from nodekit.NetNS, port uint16, addrs []netip.Addr, each int) (all []*line) {
	t.Helper()
	for _, addr := range addrs {
		for _, network := range networks {
			for range each {
				l := &line{network: network, to: netip.AddrPortFrom(addr, port)}
				l.dial(t, from)
				l.server = l.request(t)
				t.Cleanup(func() { _ = l.Close() })
				all = append(all, l)
			}
		}
	}
	return all
}

func (l *line) dial(t *testing.T, from nodekit.NetNS) {
	t.Helper()
	if err := from.Do(func() (err error) {
		l.Conn, err = net.DialTimeout(l.network, l.to.String(), answerTimeout)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func (l *line) request(t *testing.T) string {
	t.Helper()
	a, err := requestOn(l.Conn)
	if err != nil {
		t.Fatalf("%s over %s, at first answered by %q: %v", l.to, l.network, l.server, err)
	}
	return a.server
}

// Backends are added and removed under traffic: connections to remaining backends are not touched. A connected UDP socket of a pod gets another backend when
// its own is removed. A socket that was translated in the network namespace of the node gets an error, and another backend when it connects again.
func (m *serviceFixture) endpointsChangeUnderTraffic(t *testing.T, packets bool) {
	from := nodekit.NetNS(m.pod(t, "client"))
	if !packets {
		from = m.Host()
	}
	m.web(t, "", "one", "two")
	all := lines(t, from, 80, webAddrs, 6)
	for _, step := range [][]string{{"two"}, {"two", "three"}, {"three"}} {
		m.backends(t, step...)
		for name, pod := range m.pods {
			if name != "client" && !slices.Contains(step, name) {
				if err := pod.Detach(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, l := range all {
			switch {
			case slices.Contains(step, l.server): // the same server, regardless of new backends
				if now := l.request(t); now != l.server {
					t.Errorf("%s over %s went from %s to %s", l.to, l.network, l.server, now)
				}
			case l.network == "udp" && packets:
				// Datagrams before the agent removes the flow are lost with the backend.
				eventually(t, func() error {
					a, err := requestWithin(l.Conn, briefTimeout)
					l.server = a.server
					return err
				})
			case !packets: // closed by the agent
				eventually(t, func() error {
					_, err := requestWithin(l.Conn, briefTimeout)
					var timeout net.Error
					if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
						return nil
					}
					return fmt.Errorf("a socket for %s over %s, whose backend %s is gone, is still open: %v", l.to, l.network, l.server, err)
				})
				_ = l.Close()
				l.dial(t, from)
				l.server = l.request(t)
			default: // TCP stays with its backend until the connection ends
				_ = l.Close()
				l.dial(t, from)
				l.server = l.request(t)
			}
			if !slices.Contains(step, l.server) {
				t.Errorf("%s over %s is answered by %s, which is gone", l.to, l.network, l.server)
			}
		}
	}
}

// A client with session affinity keeps its backend, also when others are added, and gets another one when it is removed.
func (m *serviceFixture) sessionAffinity(t *testing.T, _ bool) {
	client := m.pod(t, "client")
	m.web(t, ", sessionAffinity: ClientIP", "one", "two", "three")
	for _, addr := range webAddrs {
		to := netip.AddrPortFrom(addr, 80)
		for _, network := range networks {
			m.backends(t, "one", "two", "three")
			first, err := request(t.Context(), client, network, to)
			if err != nil {
				t.Fatal(err)
			}
			stays := func() {
				t.Helper()
				for range 12 { // chance would do so once in half a million times
					if a, err := request(t.Context(), client, network, to); err != nil || a.server != first.server {
						t.Fatalf("%s over %s: %q answers (%v), want %s again", to, network, a.server, err, first.server)
					}
				}
			}
			stays()
			m.backends(t, "one", "two", "three", "four")
			stays()
			var others []string
			for _, name := range []string{"one", "two", "three"} {
				if name != first.server {
					others = append(others, name)
				}
			}
			m.backends(t, others...)
			gone := first.server
			if first, err = request(t.Context(), client, network, to); err != nil || first.server == gone {
				t.Fatalf("%s over %s: %q answers (%v) after %s has gone", to, network, first.server, err, gone)
			}
			stays()
		}
	}
}

// A socket that is not connected gets replies from the requested address, regardless of the backend, also when it sends to a backend directly as well.
func (m *serviceFixture) unconnectedSockets(t *testing.T, packets bool) {
	from := []nodekit.NetNS{m.pod(t, "client")}
	m.web(t, "", "one", "two")
	from = append(from, m.pods["one"]) // may select itself
	if !packets {
		from = append(from, m.Host())
	}
	for _, place := range from {
		for _, addr := range webAddrs {
			var conn *net.UDPConn
			if err := place.Do(func() (err error) { conn, err = net.ListenUDP("udp", nil); return err }); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			service, backend := netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(m.pods["two"].Addr(addr.Is6()), 8080)
			for _, to := range []netip.AddrPort{service, service, backend, service, backend} {
				_ = conn.SetDeadline(time.Now().Add(answerTimeout))
				if _, err := conn.WriteToUDPAddrPort([]byte("who"), to); err != nil {
					t.Errorf("ask %s: %v", to, err)
					continue
				}
				_, peer, err := conn.ReadFromUDPAddrPort(make([]byte, 256))
				if peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()); err != nil || peer != to {
					t.Errorf("ask %s: the answer comes from %s (%v)", to, peer, err)
				}
			}
		}
	}
}

// A client that connects again from the same port gets a current backend, not the previous one.
func (m *serviceFixture) portIsReused(t *testing.T, _ bool) {
	client := m.pod(t, "client")
	for _, pods := range [][]string{{"one"}, {"two"}, {"three", "two"}, {"one"}} {
		m.web(t, "", pods...)
		for _, addr := range webAddrs {
			for range 3 {
				a, err := requestFromPort(client, netip.AddrPortFrom(client.Addr(addr.Is6()), 4444), netip.AddrPortFrom(addr, 80))
				if err != nil || !slices.Contains(pods, a.server) {
					t.Errorf("%s: %q answers (%v), want one of %v", addr, a.server, err, pods)
				}
			}
		}
	}
}

// requestFromPort resets its connection at once, so that the port is free again.
func requestFromPort(place nodekit.NetNS, from, to netip.AddrPort) (a served, err error) {
	err = nodekit.Bind(place, func() error {
		conn, err := (&net.Dialer{Timeout: answerTimeout, LocalAddr: net.TCPAddrFromAddrPort(from)}).Dial("tcp", to.String())
		if err != nil {
			return err
		}
		a, err = requestOn(conn)
		return errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close())
	})
	return a, err
}
