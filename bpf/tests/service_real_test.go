package tests

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Real kernels at both ends: they leave checksums to a device that never completes them, datagrams have several fragments, streams use super-packets.
// Backends are another pod, the requesting pod, and the node, whose replies pass through the stack.
func TestPrivilegedReal_Services(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	data := bytes.Repeat([]byte("waggle dance "), 100_000)
	for _, family := range families {
		for name, server := range map[string]struct {
			ns   *testnet.Namespace
			addr netip.Addr
		}{"another pod": {r.b, podB.addr(family)}, "itself": {r.a, podA.addr(family)}, "the node": {r.host, gateways[family]}} {
			backend := listenUDP(t, server.ns, server.addr)
			r.service(family, protoUDP, []netip.AddrPort{portOf(backend)})
			client := r.dialUDP(family)
			for _, size := range []int{1, 1400, 4000, 20_000} {
				r.echoes(client, backend, size)
			}

			listener := listenTCP(t, server.ns, server.addr)
			r.service(family, protoTCP, []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()})
			if got := r.ask(listener, family, data); !bytes.Equal(got, data) {
				t.Errorf("IPv%d from %s: %d of %d bytes came back; last event %+v", family, name, len(got), len(data), r.event())
			}
		}
	}
}

// No socket listens, or there is no backend: the client's kernel gets an error immediately.
func TestPrivilegedReal_ServicesReject(t *testing.T) {
	t.Parallel()
	r := newRealNode(t)
	for _, family := range families {
		for name, backends := range map[string][]netip.AddrPort{"no backend": nil, "a closed port": at(podB.addr(family)), "its own closed port": at(podA.addr(family))} {
			r.service(family, protoUDP, backends)
			r.service(family, protoTCP, backends)
			client := r.dialUDP(family)
			if _, err := client.Write([]byte("anybody?")); err != nil {
				t.Fatal(err)
			}
			if _, err := limited(t, client).Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("IPv%d, %s: a datagram: %v, want a refusal; last event %+v", family, name, err, r.event())
			}
			r.a.Do(func() {
				_, err := net.DialTimeout("tcp", clusterAddr(family), testTimeout)
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("IPv%d, %s: a connection: %v, want a refusal; last event %+v", family, name, err, r.event())
				}
			})
		}
	}
}

// The backend is on another node, and the node uses the tunnel: datagrams of several fragments arrive in both directions, and the client gets the ICMP error
// about the closed port of the backend.
func TestPrivilegedReal_ServicesThroughTunnel(t *testing.T) {
	t.Parallel()
	for name, modes := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, modes)
			s.a.Do(func() {
				link, err := netlink.LinkByName("eth0")
				check(t, err)
				check(t, netlink.LinkSetMTU(link, tunnelMTU)) // the agent sets it too, so that each fragment fits into the tunnel
			})
			for _, family := range families {
				service := on(clusterIP[family], servicePort)
				backend := listenUDP(t, s.distant, distantPod[family])
				s.service(family, protoUDP, []netip.AddrPort{portOf(backend)})
				client := s.dialUDP(t, service)
				for _, size := range []int{1, 1300, 4000, 20_000} {
					s.echoes(client, backend, size)
				}
				s.service(family, protoUDP, at(distantPod[family]))
				if err := sendUntilReply(s.dialUDP(t, service)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("IPv%d: a closed port: %v, want %v; last event %+v", family, err, unix.ECONNREFUSED, s.event())
				}
			}
		})
	}
}

// A client of a service sends more than the path to the backend carries, through the tunnel and by routes: its kernel, which knows only the address of the
// service, learns the MTU. Datagrams of that size then arrive, and streams adapt their segment size.
func TestPrivilegedReal_ServiceMTUExceeded(t *testing.T) {
	t.Parallel()
	const mtu = 1340
	for name, prepare := range map[string]func(t *testing.T) *surroundings{
		"tunnel": func(t *testing.T) *surroundings {
			s := newTunnelNode(t, encapAll)
			s.update(bpf.MapEncap, uint32(0), bpf.Encap{Mtu: mtu, Mac: hostMAC})
			return s
		},
		"routes": func(t *testing.T) *surroundings {
			s := newDirectNode(t, alone, bpf.NodeDirect)
			s.update(bpf.MapNodes, uint32(otherID), bpf.Node{Mode: bpf.NodeDirect, Mtu: mtu})
			return s
		},
	} {
		t.Run(name+", datagrams", func(t *testing.T) {
			t.Parallel()
			s := prepare(t)
			for _, family := range families {
				backend := listenUDP(t, s.distant, distantPod[family])
				s.service(family, protoUDP, []netip.AddrPort{portOf(backend)})
				client, before := s.dialUDP(t, on(clusterIP[family], servicePort)), s.count(events.TooBig, bpf.DirectionEgress)
				full := mtu - map[int]int{4: 28, 6: 48}[family]
				_, err := client.Write(make([]byte, full+1))
				check(t, err)
				if err := awaitTooBig(client); err != nil || pathMTU(client, family) != mtu {
					t.Errorf("IPv%d: the MTU of the path is %d, want %d: %v", family, pathMTU(client, family), mtu, err)
				}
				if after := s.count(events.TooBig, bpf.DirectionEgress); after.Packets != before.Packets+1 {
					t.Errorf("IPv%d: %d packets were too big, want 1", family, after.Packets-before.Packets)
				}
				s.echoes(client, backend, full)
			}
		})
		t.Run(name+", streams", func(t *testing.T) {
			t.Parallel()
			s := prepare(t)
			data := bytes.Repeat([]byte("waggle dance "), 50_000)
			for _, family := range families {
				listener, before := listenTCP(t, s.distant, distantPod[family]), s.count(events.TooBig, bpf.DirectionEgress)
				s.service(family, protoTCP, []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()})
				if got := s.ask(listener, family, data); !bytes.Equal(got, data) {
					t.Errorf("IPv%d: %d of %d bytes came back; last event %+v", family, len(got), len(data), s.event())
				}
				if after := s.count(events.TooBig, bpf.DirectionEgress); after.Packets == before.Packets {
					t.Errorf("IPv%d: no packet was too big: the test tests nothing", family)
				}
			}
		})
	}
}

func clusterAddr(family int) string {
	return netip.AddrPortFrom(clusterIP[family], servicePort).String()
}

// dialUDP opens a socket of pod a that receives datagrams only from the service.
func (r *realNode) dialUDP(family int) (conn *net.UDPConn) {
	r.t.Helper()
	r.a.Do(func() {
		c, err := net.Dial("udp", clusterAddr(family))
		check(r.t, err)
		conn = c.(*net.UDPConn)
	})
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echoes sends a datagram to the service, which the backend sends back.
func (r *realNode) echoes(client, backend *net.UDPConn, size int) {
	r.t.Helper()
	message := bytes.Repeat([]byte{byte(size)}, size)
	if _, err := client.Write(message); err != nil {
		r.t.Fatal(err)
	}
	buf := make([]byte, size+1)
	n, peer, err := limited(r.t, backend).ReadFromUDPAddrPort(buf)
	if err != nil || !bytes.Equal(buf[:n], message) {
		r.t.Fatalf("%d bytes of %d arrived: %v; last event %+v", n, size, err, r.event())
	}
	if _, err := backend.WriteToUDPAddrPort(message, peer); err != nil {
		r.t.Fatal(err)
	}
	if n, err = limited(r.t, client).Read(buf); err != nil || !bytes.Equal(buf[:n], message) {
		r.t.Fatalf("%d bytes of %d came back: %v; last event %+v", n, size, err, r.event())
	}
}

func listenTCP(t *testing.T, ns *testnet.Namespace, addr netip.Addr) (listener *net.TCPListener) {
	t.Helper()
	ns.Do(func() {
		var err error
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		check(t, err)
	})
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// ask sends data from pod a to the service, whose backend returns it, and returns the received data.
func (r *realNode) ask(listener *net.TCPListener, family int, data []byte) []byte {
	r.t.Helper()
	go func() {
		server, err := listener.Accept()
		if err != nil {
			return
		}
		defer server.Close()
		_ = server.SetDeadline(time.Now().Add(testTimeout))
		_, _ = io.Copy(server, server)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	var client net.Conn
	r.a.Do(func() {
		var err error
		client, err = net.DialTimeout("tcp", clusterAddr(family), testTimeout)
		check(r.t, err)
	})
	if client == nil {
		return nil
	}
	defer client.Close()
	go func() {
		_, _ = client.Write(data)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(limited(r.t, client))
	check(r.t, err)
	return got
}
