package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Pods and the node itself communicate with one server from the same port: each with the node's address, each from a different port.
func TestPrivilegedReal_MasqueradeKeepsConnectionsApart(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		for _, family := range families {
			const port = 45000
			server := listenUDP(t, s.clients, client[family])
			to := portOf(server)
			a := listenAt(t, s.a, netip.AddrPortFrom(podA.addr(family), port))
			b := listenAt(t, s.b, netip.AddrPortFrom(podB.addr(family), port))
			if seen := s.talk(t, a, to, server, 10); seen != netip.AddrPortFrom(nodeOut[family], port) {
				t.Errorf("IPv%d: the first pod was seen as %s: its port was free", family, seen)
			}
			own := listenAt(t, s.host, netip.AddrPortFrom(nodeOut[family], port)) // after the pod
			for _, size := range []int{10, 4000} {
				if seen := s.talk(t, a, to, server, size); seen != netip.AddrPortFrom(nodeOut[family], port) {
					t.Errorf("IPv%d: the first pod was seen as %s and has lost its port", family, seen)
				}
				seenB, seenOwn := s.talk(t, b, to, server, size), s.talk(t, own, to, server, size)
				for who, seen := range map[string]netip.AddrPort{"the other pod": seenB, "the node": seenOwn} {
					if seen.Addr() != nodeOut[family] || seen.Port() == port || seen.Port() < 32768 || seenB == seenOwn {
						t.Errorf("IPv%d: %s was seen as %s", family, who, seen)
					}
				}
			}
			// The node used another port first: it keeps the port, and the pod gets another one.
			own = listenAt(t, s.host, netip.AddrPortFrom(nodeOut[family], port+1))
			a = listenAt(t, s.a, netip.AddrPortFrom(podA.addr(family), port+1))
			if seen := s.talk(t, own, to, server, 10); seen != portOf(own) {
				t.Errorf("IPv%d: the node was seen as %s, not as %s", family, seen, portOf(own))
			}
			if seen := s.talk(t, a, to, server, 10); seen == portOf(own) {
				t.Errorf("IPv%d: the pod was seen as the node's own socket", family)
			}
		}
	})
}

// A peer needs no route through the node's address: a pod that receives a request to its own address replies from this address.
func TestPrivilegedReal_RepliesKeepPodAddress(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		for _, family := range families {
			pod := listenUDP(t, s.a, podA.addr(family))
			from := listenUDP(t, s.clients, client[family])
			if seen := s.talk(t, from, portOf(pod), pod, 4000); seen != portOf(from) {
				t.Errorf("IPv%d: the pod saw %s instead of %s", family, seen, portOf(from))
			}
			// Towards another node, and towards excluded addresses, pods keep their addresses.
			distant := listenUDP(t, s.distant, otherNode[family])
			if seen := s.talk(t, pod, portOf(distant), distant, 10); seen != portOf(pod) {
				t.Errorf("IPv%d: the other node saw %s instead of %s", family, seen, portOf(pod))
			}
			s.update(bpf.MapUnmasqueraded, bpf.NewLpmKey(netip.PrefixFrom(client[family], client[family].BitLen()-2).Masked()), uint32(1))
			server := listenUDP(t, s.clients, client[family])
			if seen := s.talk(t, pod, portOf(server), server, 10); seen != portOf(pod) {
				t.Errorf("IPv%d: an excluded target saw %s instead of %s", family, seen, portOf(pod))
			}
		}
	})
}

// Services for outside clients: a local backend receives the client's address, a backend on another node receives this node's address; both accept fragments.
func TestPrivilegedReal_ServicesFromOutside(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		for _, family := range families {
			here, there := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
			near, far := netip.AddrPortFrom(nodeOut[family], 30001), netip.AddrPortFrom(balancer[family], 53)
			s.serve(uint32(family), near, loadbalancer.UDP, 0, portOf(here))
			s.serve(uint32(family)*10, far, loadbalancer.UDP, 0, portOf(there))
			from := listenUDP(t, s.clients, client[family])
			for _, size := range []int{10, 4000} {
				if seen := s.talk(t, from, near, here, size); seen != portOf(from) {
					t.Errorf("IPv%d: the pod saw %s instead of the client %s", family, seen, portOf(from))
				}
				if seen := s.talk(t, from, far, there, size); seen.Addr() != nodeIn[family] || seen.Port() < 32768 {
					t.Errorf("IPv%d: the pod on the other node saw %s", family, seen)
				}
			}
		}
	})
}

// accept reads the bytes of one connection.
func accept(t *testing.T, ns *testnet.Namespace, at netip.Addr) (port netip.AddrPort, got chan []byte, peers chan netip.AddrPort) {
	t.Helper()
	var listener *net.TCPListener
	ns.Do(func() {
		var err error
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		check(t, err)
	})
	t.Cleanup(func() { _ = listener.Close() })
	got, peers = make(chan []byte, 1), make(chan netip.AddrPort, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			close(got)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testTimeout))
		peers <- conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		data, _ := io.ReadAll(conn)
		_, _ = conn.Write([]byte("got it"))
		got <- data
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort(), got, peers
}

// Streams of segmentation-offloaded packets arrive intact through every translation, and so does the reply.
func TestPrivilegedReal_StreamsThroughTranslations(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		data := bytes.Repeat([]byte("waggle dance "), 100_000)
		for _, family := range families {
			out, outGot, outPeer := accept(t, s.clients, client[family])
			local, localGot, localPeer := accept(t, s.a, podA.addr(family))
			remote, remoteGot, remotePeer := accept(t, s.distant, distantPod[family])
			near, far := netip.AddrPortFrom(balancer[family], 80), netip.AddrPortFrom(nodeOut[family], 30002)
			s.serve(uint32(family), near, loadbalancer.TCP, 0, local)
			s.serve(uint32(family)*10, far, loadbalancer.TCP, 0, remote)
			for name, c := range map[string]struct {
				from *testnet.Namespace
				to   netip.AddrPort
				got  chan []byte
				peer chan netip.AddrPort
				want netip.Addr
			}{
				"masqueraded":        {s.a, out, outGot, outPeer, nodeOut[family]},
				"to a local backend": {s.clients, near, localGot, localPeer, client[family]},
				"to a backend there": {s.clients, far, remoteGot, remotePeer, nodeIn[family]},
			} {
				var conn net.Conn
				var err error
				c.from.Do(func() { conn, err = net.DialTimeout("tcp", c.to.String(), testTimeout) })
				if err != nil {
					t.Errorf("IPv%d %s: %v; last event %+v", family, name, err, s.event())
					continue
				}
				defer conn.Close()
				check(t, conn.SetWriteDeadline(time.Now().Add(testTimeout)))
				_, err = conn.Write(data)
				check(t, err)
				check(t, conn.(*net.TCPConn).CloseWrite())
				answer, err := io.ReadAll(limited(t, conn))
				if peer := <-c.peer; err != nil || string(answer) != "got it" || !bytes.Equal(<-c.got, data) || peer.Addr() != c.want {
					t.Errorf("IPv%d %s: answer %q, %v; the server saw %s, want %s; last event %+v", family, name, answer, err, peer, c.want, s.event())
				}
			}
		}
	})
}

// sendUntilReply sends a datagram each second until a reply or an error arrives, and returns the error of the socket. Kernels limit the rate of ICMP errors,
// and drop packets that wait too long for the link address of a neighbour.
func sendUntilReply(conn net.Conn) (err error) {
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		if _, err = conn.Write([]byte("is anybody there?")); err != nil {
			return err // of the previous datagram
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // wall clock: the request is repeated
		if _, err = conn.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}

// An ICMP error is translated back through every translation to the sender of the inner packet.
func TestPrivilegedReal_ErrorsThroughTranslations(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		for _, family := range families {
			const closed = 9
			near, far := netip.AddrPortFrom(nodeOut[family], 30003), netip.AddrPortFrom(nodeOut[family], 30004)
			s.serve(uint32(family), near, loadbalancer.UDP, 0, netip.AddrPortFrom(podA.addr(family), closed))
			s.serve(uint32(family)*10, far, loadbalancer.UDP, 0, netip.AddrPortFrom(distantPod[family], closed))
			for name, c := range map[string]struct {
				from *testnet.Namespace
				to   netip.AddrPort
			}{
				"masqueraded":        {s.a, netip.AddrPortFrom(client[family], closed)},
				"to a local backend": {s.clients, near},
				"to a backend there": {s.clients, far},
			} {
				var conn net.Conn
				c.from.Do(func() {
					var err error
					conn, err = net.Dial("udp", c.to.String())
					check(t, err)
				})
				defer conn.Close()
				if err := sendUntilReply(conn); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("IPv%d %s: %v, want %v; last event %+v", family, name, err, unix.ECONNREFUSED, s.event())
				}
			}
		}
		if c := s.count(events.UnknownFlow, bpf.DirectionEgress); c.Packets != 0 {
			t.Errorf("%d errors were taken for those of unknown flows", c.Packets)
		}
	})
}

// A client of a service without backends gets an error immediately.
func TestPrivilegedReal_NoBackend_ErrorToOutsideClient(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		for _, family := range families {
			for protocol, network := range map[loadbalancer.Protocol]string{loadbalancer.TCP: "tcp", loadbalancer.UDP: "udp"} {
				to := netip.AddrPortFrom(balancer[family], 8080)
				s.serve(uint32(family), to, protocol, 0)
				s.clients.Do(func() {
					conn, err := net.DialTimeout(network, to.String(), testTimeout)
					if err == nil { // UDP gets the error later
						defer conn.Close()
						_, err = conn.Write([]byte("is anybody there?"))
						check(t, err)
						_, err = limited(t, conn).Read(make([]byte, 10))
					}
					if !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("IPv%d %s: %v, want %v; last event %+v", family, network, err, unix.ECONNREFUSED, s.event())
					}
				})
			}
		}
	})
}

// The path to the other node has a smaller MTU than the clients: they get an ICMP error and send smaller packets.
func TestPrivilegedReal_SmallerMTUToBackend(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		s.host.Do(func() {
			for _, family := range families {
				check(t, netlink.RouteReplace(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(distantPod[family]), Gw: otherNode[family].AsSlice(), MTU: 1300, MTULock: true}))
			}
		})
		data := bytes.Repeat([]byte("waggle dance "), 10_000)
		for _, family := range families {
			there, got, _ := accept(t, s.distant, distantPod[family])
			far := netip.AddrPortFrom(nodeOut[family], 30006)
			s.serve(uint32(family), far, loadbalancer.TCP, 0, there)
			before := s.count(events.TooBig, bpf.DirectionIngress)
			var conn net.Conn
			var err error
			s.clients.Do(func() { conn, err = net.DialTimeout("tcp", far.String(), testTimeout) })
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			check(t, conn.SetWriteDeadline(time.Now().Add(testTimeout)))
			_, err = conn.Write(data)
			check(t, err)
			check(t, conn.(*net.TCPConn).CloseWrite())
			if !bytes.Equal(<-got, data) {
				t.Errorf("IPv%d: not all arrived; last event %+v", family, s.event())
			}
			if after := s.count(events.TooBig, bpf.DirectionIngress); after.Packets == before.Packets {
				t.Errorf("IPv%d: no packet was too big: the test tests nothing", family)
			}
		}
	})
}

// The first datagram of a client exceeds the MTU of the device or the route to the backend: the client learns the MTU from an ICMP error.
func TestPrivilegedReal_FirstDatagramIsTooBig(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func() error{
		"device": func() error {
			link, err := netlink.LinkByName("backbone")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, 1300)
		},
		"route": func() (err error) {
			for _, family := range families {
				err = errors.Join(err, netlink.RouteReplace(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(distantPod[family]),
					Gw: otherNode[family].AsSlice(), MTU: 1300, MTULock: true}))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rate = 4 // of ICMP errors; these are not limited
			s := newSurroundings(t, ethernetOnly, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableRejectRate: rate})
			s.host.Do(func() { check(t, limit()) })
			s.host.Enter()
			for _, family := range families {
				far := on(balancer[family], 53)
				s.serve(uint32(family), far, loadbalancer.UDP, 0, on(distantPod[family], 53))
				datagram := coming(on(client[family], 4000), far)
				datagram.payload = make([]byte, 1400)
				got := s.run(bpf.NetdevIngress, ifUplink, datagram.bytes(t))
				event := s.event()
				if event == nil || event.Reason != events.TooBig || got.action != actRedirect {
					t.Fatalf("IPv%d: action %d, event %+v", family, int32(got.action), event)
				}
				kind, code, mtu := got.packet[l4At(family)], got.packet[l4At(family)+1], binary.BigEndian.Uint32(got.packet[l4At(family)+4:])
				if want := map[int][2]byte{4: {3, 4}, 6: {2, 0}}[family]; kind != want[0] || code != want[1] || mtu != 1300 {
					t.Errorf("IPv%d: ICMP type %d, code %d, MTU %d", family, kind, code, mtu)
				}
				for range 20 * rate {
					if got := s.run(bpf.NetdevIngress, ifUplink, datagram.bytes(t)); got.action != actRedirect {
						t.Fatalf("IPv%d: a further datagram is not answered: action %d", family, int32(got.action))
					}
				}
			}
		})
	}
}

// A host that uses an address of the node, or of a local pod, reaches neither a service nor passes the rules of the node.
func TestPrivilegedReal_SpoofedLocalAddress_IsDropped(t *testing.T) {
	t.Parallel()
	s := newSurroundings(t, ethernetOnly)
	var mine, nodes mac.Addr
	s.host.Do(func() { nodes = macOf(t, "uplink") })
	s.clients.Do(func() { mine = macOf(t, "eth0") })
	for _, family := range families {
		near := netip.AddrPortFrom(nodeOut[family], 30005)
		s.serve(uint32(family), near, loadbalancer.UDP, 0, netip.AddrPortFrom(podA.addr(family), 7))
		for _, source := range []netip.Addr{podA.addr(family), nodeIn[family]} {
			before, guarded := s.count(events.SourceIP, bpf.DirectionIngress), s.guarded().NodeSource.Packets
			toService := flow{from: mine, to: nodes, src: source, dst: near.Addr(), sport: 4000, dport: near.Port()}.bytes(t)
			toPod := flow{from: mine, to: nodes, src: source, dst: podB.addr(family), sport: 4000, dport: 7}.bytes(t)
			s.clients.Do(func() { check(t, sendFrame(toService)); check(t, sendFrame(toPod)) })
			s.spoofed++
			check(t, wait("the drops of "+source.String(), func() (bool, error) {
				return s.count(events.SourceIP, bpf.DirectionIngress).Packets == before.Packets+1 && s.guarded().NodeSource.Packets == guarded+1, nil
			}))
		}
	}
}

func macOf(t *testing.T, name string) (m mac.Addr) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		t.Error(err)
		return m
	}
	copy(m[:], link.HardwareAddr)
	return m
}
