package tests

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Datagrams and streams pass between a pod and a pod of another node, and the stack of the node handles the packets that programs leave to it.
func TestPrivilegedReal_Direct(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		direct directMode
		mode   uint8
	}{"the stack": {alone, 0}, "programs": {alone, bpf.NodeDirect}, "programs beside a tunnel": {beside, bpf.NodeDirect}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDirectNode(t, c.direct, c.mode)
			for _, family := range families {
				before := s.forwarded(t, family)
				pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
				for _, size := range []int{1, 100, 1400} {
					s.exchange(t, pod, distant, size)
				}
				s.streamBothWays(t, family, bytes.Repeat([]byte("waggle dance "), 100_000))
				if by := s.forwarded(t, family) != before; by != (c.mode != bpf.NodeDirect) {
					t.Errorf("IPv%d: the stack has forwarded %d packets; last event %+v", family, s.forwarded(t, family)-before, s.event())
				}
				s.exchange(t, pod, distant, 4000) // in fragments
				if s.forwarded(t, family) == before {
					t.Errorf("IPv%d: the stack has forwarded no fragments", family)
				}
			}
		})
	}
}

// streamBothWays sends data over TCP to the pod of the other node, and back.
func (s *surroundings) streamBothWays(t *testing.T, family int, data []byte) {
	t.Helper()
	for way, c := range map[string]struct {
		from, to *testnet.Namespace
		target   netip.Addr
	}{"to": {s.a, s.distant, distantPod[family]}, "from": {s.distant, s.a, podA.addr(family)}} {
		if got := stream(t, c.from, c.to, c.target, data); !bytes.Equal(got, data) {
			t.Errorf("IPv%d %s the other node: %d of %d bytes arrived; last event %+v", family, way, len(got), len(data), s.event())
		}
	}
}

// Streams and datagrams arrive intact where the kernel has to compute checksums, segment and verify instead of devices.
func TestPrivilegedReal_DirectWithoutOffloads(t *testing.T) {
	t.Parallel()
	for name, off := range map[string][]uint32{
		"without checksums": {ethtoolTxChecksum}, "without segmentation": {ethtoolTSO}, "without anything": {ethtoolTxChecksum, ethtoolTSO, ethtoolGRO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDirectNode(t, alone, bpf.NodeDirect)
			for _, command := range off {
				s.host.Do(func() { check(t, withoutOffload("backbone", command)) })
				s.distant.Do(func() { check(t, withoutOffload("eth0", command)) })
			}
			for _, family := range families {
				s.exchange(t, listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family]), 1400)
				s.streamBothWays(t, family, bytes.Repeat([]byte("waggle dance "), 50_000))
			}
		})
	}
}

// A datagram that is too long for the path, its route or its device causes an ICMP error; its sender learns the MTU, and a stream adapts its segment size.
func TestPrivilegedReal_DirectMTUExceeded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		route  int    // MTU of the route to the pod; 0 leaves it unchanged
		device int    // MTU of the egress device; 0 leaves it unchanged
		path   uint16 // MTU of the path
		want   int
	}{"route": {1400, 0, 0, 1400}, "device": {0, 1380, 0, 1380}, "path": {0, 0, 1340, 1340}, "path and device": {0, 1380, 1420, 1380}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDirectNode(t, alone, bpf.NodeDirect)
			s.update(bpf.MapNodes, uint32(otherID), bpf.Node{Mode: bpf.NodeDirect, Mtu: c.path})
			s.host.Do(func() {
				link, err := netlink.LinkByName("backbone")
				check(t, err)
				for _, family := range families {
					if c.route != 0 {
						check(t, netlink.RouteReplace(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(distantPod[family]), Gw: otherNode[family].AsSlice(),
							MTU: c.route, MTULock: true}))
					}
				}
				if c.device != 0 {
					check(t, netlink.LinkSetMTU(link, c.device))
				}
			})
			for _, family := range families {
				before, stack := s.count(events.TooBig, bpf.DirectionEgress), s.forwarded(t, family)
				server := listenUDP(t, s.distant, distantPod[family])
				client := s.dialUDP(t, portOf(server))
				header := map[int]int{4: 28, 6: 48}[family]
				if _, err := client.Write(make([]byte, c.want-header+1)); err != nil {
					t.Fatalf("IPv%d: %v", family, err)
				}
				if err := awaitTooBig(client); err != nil || pathMTU(client, family) != c.want {
					t.Errorf("IPv%d: the MTU of the path is %d, want %d: %v", family, pathMTU(client, family), c.want, err)
				}
				if after := s.count(events.TooBig, bpf.DirectionEgress); after.Packets != before.Packets+1 {
					t.Errorf("IPv%d: %d packets were too big, want 1", family, after.Packets-before.Packets)
				}
				full := make([]byte, c.want-header)
				_, err := client.Write(full)
				check(t, err)
				if n, err := limited(t, server).Read(make([]byte, 2000)); err != nil || n != len(full) {
					t.Errorf("IPv%d: %d bytes of a full datagram arrived: %v", family, n, err)
				}
				data := bytes.Repeat([]byte("waggle dance "), 50_000)
				if got := stream(t, s.a, s.distant, distantPod[family], data); !bytes.Equal(got, data) {
					t.Errorf("IPv%d: %d of %d bytes of a stream arrived", family, len(got), len(data))
				}
				if after := s.forwarded(t, family); after != stack {
					t.Errorf("IPv%d: the stack has forwarded %d packets", family, after-stack)
				}
			}
		})
	}
}

// dialUDP opens a connected socket of pod a.
func (s *surroundings) dialUDP(t *testing.T, to netip.AddrPort) (conn *net.UDPConn) {
	t.Helper()
	s.a.Do(func() {
		var err error
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		check(t, err)
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ICMP errors about packets between pods of different nodes reach the pods that sent them.
func TestPrivilegedReal_DirectErrors(t *testing.T) {
	t.Parallel()
	s := newDirectNode(t, alone, bpf.NodeDirect)
	for _, family := range families {
		for way, c := range map[string]struct {
			ns *testnet.Namespace
			to netip.Addr
		}{"to": {s.a, distantPod[family]}, "from": {s.distant, podA.addr(family)}} {
			var conn net.Conn
			c.ns.Do(func() {
				var err error
				conn, err = net.Dial("udp", netip.AddrPortFrom(c.to, 7).String())
				check(t, err)
			})
			defer conn.Close()
			_, err := conn.Write([]byte("anybody?"))
			check(t, err)
			if _, err := limited(t, conn).Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("IPv%d %s the other node: %v, want %v; last event %+v", family, way, err, unix.ECONNREFUSED, s.event())
			}
		}
	}
}

// The policy of the local pod applies to packets that a pod of another node sends past the stack. The sender's identity is found by its address, as without
// direct forwarding.
func TestPrivilegedReal_DirectIsEvaluated(t *testing.T) {
	t.Parallel()
	s := newDirectNode(t, alone, bpf.NodeDirect)
	for _, family := range families {
		pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
		before, stack := s.count(events.PolicyDenied, bpf.DirectionIngress), s.forwarded(t, family)
		denied := podA
		denied.policyIn = 0
		s.put(denied)
		s.forgetEvents()
		if err := wait("the drop", func() (bool, error) { // the first datagrams may be lost while neighbours are resolved
			_, err := distant.WriteToUDPAddrPort([]byte("denied"), portOf(pod))
			return s.count(events.PolicyDenied, bpf.DirectionIngress).Packets > before.Packets, err
		}); err != nil {
			t.Error(err)
		}
		if event := s.nextEvent(); event == nil || event.SourceIdentity != identityDistant || event.Endpoint != podA.id {
			t.Errorf("IPv%d: the drop is reported as %+v", family, event)
		}
		s.put(podA)
		s.exchange(t, listenUDP(t, s.a, podA.addr(family)), distant, 100)
		if after := s.forwarded(t, family); after != stack {
			t.Errorf("IPv%d: the stack has forwarded %d packets", family, after-stack)
		}
	}
}
