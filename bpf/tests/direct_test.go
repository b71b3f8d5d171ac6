package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
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
				if err := wait("the MTU of the path", func() (bool, error) { return pathMTU(client, family) == c.want, nil }); err != nil {
					t.Errorf("IPv%d: the MTU of the path is %d, want %d: %v", family, pathMTU(client, family), c.want, err)
				}
				if after := s.count(events.TooBig, bpf.DirectionEgress); after.Packets != before.Packets+1 {
					t.Errorf("IPv%d: %d packets were too big, want 1", family, after.Packets-before.Packets)
				}
				clearError(t, client)
				full := make([]byte, c.want-header)
				_, err := client.Write(full)
				check(t, err)
				if n, err := server.Read(make([]byte, 2000)); err != nil || n != len(full) {
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
		check(t, conn.SetDeadline(time.Now().Add(testTimeout)))
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
			check(t, conn.SetDeadline(time.Now().Add(testTimeout)))
			_, err := conn.Write([]byte("anybody?"))
			check(t, err)
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
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
		if err := wait("the drop", func() (bool, error) { // the first datagrams may be lost while neighbours are resolved
			_, err := distant.WriteToUDPAddrPort([]byte("denied"), portOf(pod))
			return s.count(events.PolicyDenied, bpf.DirectionIngress).Packets > before.Packets, err
		}); err != nil {
			t.Error(err)
		}
		if event := s.event(); event == nil || event.SourceIdentity != identityDistant || event.Endpoint != podA.id {
			t.Errorf("IPv%d: the drop is reported as %+v", family, event)
		}
		s.put(podA)
		s.exchange(t, listenUDP(t, s.a, podA.addr(family)), distant, 100)
		if after := s.forwarded(t, family); after != stack {
			t.Errorf("IPv%d: the stack has forwarded %d packets", family, after-stack)
		}
	}
}

// A packet for a pod of another node is forwarded immediately, with a decremented TTL, to the next hop of its route. The mark is the one that the stack would
// set.
func TestPrivilegedPodEgress_SendsDirectly(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, _ mac.Addr) {
		plain := sent(podA, podA.addr(family), distantPod[family])
		large := plain
		large.payload = make([]byte, 2500)
		for name, c := range map[string]struct {
			frame []byte
			gso   uint32
		}{
			"UDP":               {plain.bytes(t), 0},
			"TCP":               {plain.ports(4000, 80).tcp(t, "S"), 0},
			"ICMP":              {plain.echo(t, false, 7), 0},
			"SCTP":              {plain.ports(4001, 80).raw(t, protoSCTP), 0},
			"two hops are left": {plain.withHops(2).bytes(t), 0},
			"an aggregate":      {large.ports(4002, 80).bytes(t), 1400},
		} {
			t.Run(name, func(t *testing.T) {
				n, frame := s.in(t), unpadded(c.frame)
				before := n.count(events.Forwarded, bpf.DirectionEgress)
				got := n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, GsoSize: c.gso, GsoSegs: 2}, frame)
				n.wantPacket(got, actRedirect, oneHopLess(frame))
				if want := markOf(identityPod + uint32(podA.id)); got.mark != want {
					t.Errorf("mark %#x, want %#x", got.mark, want)
				}
				if n.count(events.Forwarded, bpf.DirectionEgress).Packets == before.Packets { // the kernel of the node may send as well
					t.Error("the packet is not counted")
				}
			})
		}
	})
}

// oneHopLess returns a frame with a decremented TTL or hop limit.
func oneHopLess(frame []byte) []byte {
	frame = slices.Clone(frame)
	if frame[14]>>4 == 4 {
		frame[22]--
		sumIPv4(frame, 14)
	} else {
		frame[21]--
	}
	return frame
}

// framed sets the addresses of a link in a frame.
func framed(frame []byte, to, from mac.Addr) []byte {
	frame = slices.Clone(frame)
	copy(frame, to[:])
	copy(frame[6:], from[:])
	return frame
}

// withOptions adds an IPv4 option, or IPv6 destination options, to an unpadded frame.
func withOptions(frame []byte) []byte {
	if frame[14]>>4 == 4 {
		frame = slices.Insert(slices.Clone(frame), 34, 1, 1, 1, 1)
		frame[14]++
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
		sumIPv4(frame, 14)
		return frame
	}
	frame = slices.Insert(slices.Clone(frame), 54, frame[20], 0, 1, 4, 0, 0, 0, 0)
	frame[20] = 60
	frame[19] += 8
	return frame
}

// Unusual packets, and packets that are not for a pod with a route, go to the stack unchanged.
func TestPrivilegedPodEgress_LeavesTheUnusualToTheStack(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, _ mac.Addr) {
		pod := podA.addr(family)
		plain := sent(podA, pod, distantPod[family])
		large := plain
		large.payload = make([]byte, 1480)
		stack := func(t *testing.T, n *node, frame []byte) {
			t.Helper()
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, frame), actOK, frame)
		}
		cases := map[string][]byte{
			"the last hop":           unpadded(plain.withHops(1).bytes(t)),
			"options":                withOptions(unpadded(plain.bytes(t))),
			"padded":                 append(unpadded(plain.bytes(t)), 0, 0),
			"a node without a mode":  unpadded(sent(podA, pod, thirdPod[family]).bytes(t)),
			"an unknown pod":         unpadded(sent(podA, pod, distantPod[family].Next()).bytes(t)),
			"the other node":         unpadded(sent(podA, pod, otherNode[family]).bytes(t)),
			"the world":              unpadded(sent(podA, pod, client[family]).bytes(t)),
			"this node":              unpadded(sent(podA, pod, nodeIn[family]).bytes(t)),
			"a first fragment":       unpadded(plain.ports(5000, 53).part(t, 9, 0, true)),
			"a later fragment of it": unpadded(plain.ports(5000, 53).part(t, 9, 3, false)),
		}
		if family == 4 {
			cases["too long, and may be cut"] = large.bytes(t)
		}
		names := []string{"a first fragment", "a later fragment of it"} // in this order
		for name := range cases {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) { stack(t, s.in(t), cases[name]) })
		}
		frame := unpadded(plain.bytes(t))
		t.Run("an aggregate of another protocol", func(t *testing.T) {
			n, frame := s.in(t), unpadded(plain.ports(4000, 80).raw(t, protoSCTP))
			n.wantPacket(n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, GsoSize: 20, GsoSegs: 2}, frame), actOK, frame)
		})
		t.Run("before all hooks are of this generation", func(t *testing.T) {
			n := s.in(t)
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: s.direct.since - 1})
			stack(t, n, frame)
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: s.direct.since})
		})
		t.Run("a device without programs", func(t *testing.T) {
			n := s.in(t)
			check(t, n.maps[bpf.MapNetdevs].Delete(uint32(ifBackbone)))
			stack(t, n, frame)
			n.lead(ifBackbone, nodeIn)
		})
		t.Run("the address is one of this node by now", func(t *testing.T) {
			n := s.in(t)
			n.update(bpf.MapEndpoints, bpf.NewAddrKey(distantPod[family]), bpf.EndpointRef{Flags: bpf.FlagHost})
			stack(t, n, unpadded(plain.ports(4003, 53).bytes(t)))
			check(t, n.maps[bpf.MapEndpoints].Delete(bpf.NewAddrKey(distantPod[family])))
		})
		t.Run("no route", func(t *testing.T) {
			n := s.in(t)
			check(t, netlink.RouteReplace(&netlink.Route{Dst: hostNet(distantPod[family]), Type: unix.RTN_BLACKHOLE, Priority: 1}))
			check(t, netlink.RouteDel(&netlink.Route{Dst: hostNet(distantPod[family]), Gw: otherNode[family].AsSlice(), LinkIndex: ifBackbone}))
			stack(t, n, frame)
		})
	})
}

// A packet that exceeds the MTU of a link on the path, and that must not be fragmented, causes an ICMP error. The size of segments counts, not of their
// aggregate.
func TestPrivilegedPodEgress_DirectIsTooBig(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, _ mac.Addr) {
		large := sent(podA, podA.addr(family), distantPod[family])
		large.payload = make([]byte, 2500)
		frame := withoutFragments(large.bytes(t))
		for name, gso := range map[string]uint32{"one packet": 0, "segments": 1480} {
			t.Run(name, func(t *testing.T) {
				n := s.in(t)
				before := n.count(events.TooBig, bpf.DirectionEgress)
				got := n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, GsoSize: gso, GsoSegs: 2}, frame)
				if event := n.event(); event == nil || event.Reason != events.TooBig || got.action != actRedirect {
					t.Fatalf("action %d, event %+v", int32(got.action), event)
				}
				if after := n.count(events.TooBig, bpf.DirectionEgress); after.Packets != before.Packets+1 {
					t.Errorf("counted %d packets, want 1", after.Packets-before.Packets)
				}
				fits := binary.BigEndian.Uint16(got.packet[14+20+6:])
				if family == 6 {
					fits = uint16(binary.BigEndian.Uint32(got.packet[14+40+4:]))
				}
				if fits != 1500 {
					t.Errorf("the error says that %d bytes fit: % x", fits, got.packet)
				}
			})
		}
	})
}

// A packet of a pod of another node goes to the program of the local pod, with a decremented TTL and without a difference to a packet from the stack.
func TestPrivilegedNetdevIngress_DeliversDirectly(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, device mac.Addr) {
		plain := flow{from: networkMAC, to: device, src: distantPod[family], dst: podA.addr(family)}
		large := plain
		large.payload = make([]byte, 2500)
		for name, c := range map[string]struct {
			frame []byte
			gso   uint32
		}{
			"UDP":               {unpadded(plain.bytes(t)), 0},
			"TCP":               {unpadded(plain.ports(4000, 80).tcp(t, "S")), 0},
			"ICMP":              {unpadded(plain.echo(t, false, 7)), 0},
			"SCTP":              {unpadded(plain.ports(4001, 80).raw(t, protoSCTP)), 0},
			"padded":            {append(unpadded(plain.bytes(t)), make([]byte, 8)...), 0},
			"two hops are left": {unpadded(plain.withHops(2).bytes(t)), 0},
			"an ICMP error":     {unpadded(plain.unreachable(t, sent(podA, podA.addr(family), distantPod[family]).bytes(t))), 0},
			"an aggregate":      {large.bytes(t), 1400},
		} {
			t.Run(name, func(t *testing.T) {
				n := s.in(t)
				before := n.count(events.Forwarded, bpf.DirectionIngress)
				got := n.runSkb(bpf.NetdevIngress, skBuff{Ifindex: ifBackbone, GsoSize: c.gso, GsoSegs: 2}, c.frame)
				n.wantPacket(got, actRedirect, framed(oneHopLess(c.frame), podA.mac, podA.host))
				if got.mark != 0 {
					t.Errorf("mark %#x, want none", got.mark)
				}
				if n.count(events.Forwarded, bpf.DirectionIngress).Packets == before.Packets { // the kernel of the node may send as well
					t.Error("the packet is not counted")
				}
			})
		}
		t.Run("a client of a service with a local backend", func(t *testing.T) {
			n, frontend := s.in(t), on(nodeIn[family], 8080)
			n.serve(60, frontend, loadbalancer.TCP, 0, on(podA.addr(family), 80))
			request := flow{from: networkMAC, to: device, src: distantPod[family], dst: frontend.Addr()}.ports(4004, 8080)
			served := flow{from: podA.host, to: podA.mac, src: distantPod[family], dst: podA.addr(family)}.ports(4004, 80).withHops(63)
			n.wantPacket(n.run(bpf.NetdevIngress, ifBackbone, unpadded(request.tcp(t, "S"))), actRedirect, unpadded(served.tcp(t, "S")))
		})
	})
}

// Unusual packets, and packets that are not from a pod with a route, pass to the stack unchanged.
func TestPrivilegedNetdevIngress_LeavesTheUnusualToTheStack(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, device mac.Addr) {
		from := func(src, dst netip.Addr) flow { return flow{from: networkMAC, to: device, src: src, dst: dst} }
		pod := podA.addr(family)
		plain := from(distantPod[family], pod)
		large := plain
		large.payload = make(gopacket.Payload, 1500)
		group, other := plain, plain
		group.to, other.to = broadcast, networkMAC
		stack := func(t *testing.T, n *node, ctx skBuff, frame []byte) {
			t.Helper()
			n.wantPacket(n.runSkb(bpf.NetdevIngress, ctx, frame), actUnspec, frame)
		}
		for name, frame := range map[string][]byte{
			"the last hop":                         unpadded(plain.withHops(1).bytes(t)),
			"options":                              withOptions(unpadded(plain.bytes(t))),
			"a first fragment":                     unpadded(plain.ports(5000, 53).part(t, 9, 0, true)),
			"a later fragment":                     unpadded(plain.ports(5000, 53).part(t, 9, 3, false)),
			"longer than the link of the pod":      large.bytes(t),
			"of a node without a mode":             unpadded(from(thirdPod[family], pod).bytes(t)),
			"of an unknown pod":                    unpadded(from(distantPod[family].Next(), pod).bytes(t)),
			"of the other node":                    unpadded(from(otherNode[family], pod).bytes(t)),
			"of the world":                         unpadded(from(client[family], pod).bytes(t)),
			"of a local pod":                       unpadded(from(podB.addr(family), pod).bytes(t)),
			"to this node":                         unpadded(from(distantPod[family], nodeIn[family]).bytes(t)),
			"to the gateway of the pods":           unpadded(from(distantPod[family], gateways[family]).bytes(t)),
			"to no pod":                            unpadded(from(distantPod[family], podB.addr(family).Next()).bytes(t)),
			"to the broadcast address of the link": unpadded(group.bytes(t)),
			"to another host":                      unpadded(other.bytes(t)),
		} {
			t.Run(name, func(t *testing.T) { stack(t, s.in(t), skBuff{Ifindex: ifBackbone}, frame) })
		}
		frame := unpadded(plain.bytes(t))
		t.Run("segments longer than the link of the pod", func(t *testing.T) {
			stack(t, s.in(t), skBuff{Ifindex: ifBackbone, GsoSize: 1490, GsoSegs: 2}, large.bytes(t))
		})
		t.Run("by a device without the route to its source", func(t *testing.T) {
			frame := framed(frame, uplinkMAC, networkMAC)
			stack(t, s.in(t), skBuff{Ifindex: ifUplink}, frame)
		})
		t.Run("of a VLAN", func(t *testing.T) {
			stack(t, s.in(t), skBuff{Ifindex: ifBackbone}, slices.Insert(slices.Clone(frame), 12, 0x81, 0, 0, 5))
		})
		t.Run("truncated", func(t *testing.T) {
			n := s.in(t)
			for length := l4At(family); length < len(frame); length++ {
				stack(t, n, skBuff{Ifindex: ifBackbone}, frame[:length])
			}
		})
		t.Run("before all hooks are of this generation", func(t *testing.T) {
			n := s.in(t)
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: s.direct.since - 1})
			stack(t, n, skBuff{Ifindex: ifBackbone}, frame)
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: s.direct.since})
		})
		t.Run("the device forwards nothing", func(t *testing.T) {
			n := s.in(t)
			name := map[int]string{4: "ipv4/conf/backbone/forwarding", 6: "ipv6/conf/backbone/forwarding"}[family]
			check(t, writeSetting(name, "0"))
			stack(t, n, skBuff{Ifindex: ifBackbone}, frame)
			check(t, writeSetting(name, "1"))
			if got := n.run(bpf.NetdevIngress, ifBackbone, frame); got.action != actRedirect {
				t.Errorf("action %d, want %d", int32(got.action), actRedirect)
			}
		})
	})
}
