package tests

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
)

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
			"two hops are left": {plain.withTTL(2).bytes(t), 0},
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
			"the last hop":           unpadded(plain.withTTL(1).bytes(t)),
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
			"two hops are left": {unpadded(plain.withTTL(2).bytes(t)), 0},
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
			served := flow{from: podA.host, to: podA.mac, src: distantPod[family], dst: podA.addr(family)}.ports(4004, 80).withTTL(63)
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
			"the last hop":                         unpadded(plain.withTTL(1).bytes(t)),
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
