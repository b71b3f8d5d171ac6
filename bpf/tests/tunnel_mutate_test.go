package tests

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// sender is a node that sends tunnel frames over one family.
type sender struct {
	id    uint16
	from  netip.Addr
	enter string // program that enters overlay_ingress with the metadata of the sender
}

// Changed frames of other nodes never deliver a packet whose inner source is not of the sender, neither through the tunnel device nor when netdev_ingress
// decapsulates. A frame that netdev_ingress decapsulates would also pass the device, with the same mark.
func TestPrivilegedNetdevIngress_MutatedTunnelFrames(t *testing.T) {
	t.Parallel()
	onTunnelWith(t, encapAll, func(t *testing.T, n *node, family int) {
		const vni = identityFromVNI
		random := testseed.New(t)
		senders := []sender{{otherID, otherNode[4], "other node"}, {thirdID, thirdNode[4], "third node"}, {otherID, otherNode[6], "other node over IPv6"}}
		for _, s := range senders {
			n.arriveAs(outerHeader{from: s.from, vni: vni})
			n.setProgram(s.enter, n.program(tunnelledAs))
		}
		inner := innerFrames(t, family)
		var passed, decapsulated, left int
		for range 10_000 {
			s, frame := senders[random.IntN(len(senders))], replaceAddress(random, inner[random.IntN(len(inner))], 14)
			frame = mutate(random, frame)
			outer := fromNode(t, s.from, vni, frame)
			whole := random.IntN(2) == 0
			if whole { // the outer headers change too
				outer = mutate(random, replaceAddress(random, outer, 14))
			}
			received := n.run(bpf.NetdevIngress, ifUplink, outer)
			switch received.action {
			case actRedirect:
				decapsulated++
			case actUnspec:
				left++
			}
			if fault := receivedFault(outer, received); fault != "" {
				t.Fatalf("%s: action %d, mark %#x\n in %x\nout %x", fault, int32(received.action), received.mark, outer, received.packet)
			}
			if whole {
				continue
			}
			got := n.run(s.enter, ifTunnel, frame)
			if got.action == actUnspec {
				passed++
			}
			if fault := tunnelledFault(s, frame, got); fault != "" {
				t.Fatalf("from %s: %s: action %d, mark %#x\n in %x\nout %x", s.enter, fault, int32(got.action), got.mark, frame, got.packet)
			}
			if received.action == actRedirect && (got.action != actUnspec || got.mark != received.mark) {
				t.Fatalf("from %s: decapsulated with mark %#x; through the device action %d, mark %#x\n%x", s.enter, received.mark, int32(got.action), got.mark, frame)
			}
		}
		t.Logf("%d passed the device's program, %d were decapsulated, %d left to the device", passed, decapsulated, left)
		if passed < 500 || left < 500 || decapsulates(family) && decapsulated < 300 {
			t.Errorf("%d passed the device's program, %d were decapsulated, %d left to the device: the test sees too little", passed, decapsulated, left)
		}
	})
}

// innerFrames are frames of every kind that nodes send through the tunnel.
func innerFrames(t *testing.T, family int) (frames [][]byte) {
	t.Helper()
	long := gopacket.Payload(bytes.Repeat([]byte("waggle dance "), 5)) // so that truncation removes some of it
	for _, f := range []flow{
		inside(distantPod[family], podA.addr(family)), inside(distantPod[family].Next(), podB.addr(family)), inside(thirdPod[family], podA.addr(family)),
		inside(otherNode[family], podA.addr(family)), inside(distantPod[family], gateways[family]), inside(distantPod[family], nodeIn[family]),
	} {
		f.payload = long
		frames = append(frames, unpadded(f.bytes(t)))
	}
	f := inside(distantPod[family], podA.addr(family))
	nested := f.ports(1, tunnelPort)
	nested.payload = frames[0]
	frames = append(frames, unpadded(f.tcp(t, "S")), f.part(t, 1, 0, true), f.part(t, 1, 10, false), f.quoting(t, received(podA, podA.addr(family), distantPod[family]).bytes(t), 64),
		unpadded(nested.bytes(t)))
	if family == 6 {
		frames = append(frames, chain(t, f, layers.IPProtocolICMPv6, icmpBytes(128), hopByHop(), routing(), destOptions(1)))
	}
	return frames
}

// replaceAddress sometimes replaces the source or the destination of the IP header at an offset. Changed bytes alone would seldom make an address of
// another node or pod.
func replaceAddress(random *rand.Rand, frame []byte, at int) []byte {
	family, first := int(frame[at]>>4), map[byte]int{4: 12, 6: 8}[frame[at]>>4]
	if random.IntN(3) != 0 || first == 0 {
		return frame
	}
	others := []netip.Addr{distantPod[family], thirdPod[family], otherNode[family], thirdNode[family], nodeIn[family], nodeOut[family], client[family], gateways[family],
		podA.addr(family), podB.addr(family), podB.addr(family).Next()}
	addr := others[random.IntN(len(others))].AsSlice()
	frame = bytes.Clone(frame)
	copy(frame[at+first+random.IntN(2)*len(addr):], addr)
	return frame
}

// ends returns the addresses of a frame. It reports whether the frame contains an IP header.
func ends(frame []byte) (from, to netip.Addr, ok bool) {
	switch proto := binary.BigEndian.Uint16(frame[offEtherType:]); {
	case proto == 0x0800 && len(frame) >= offIP+20 && frame[offIP]>>4 == 4:
		return netip.AddrFrom4([4]byte(frame[26:30])), netip.AddrFrom4([4]byte(frame[30:34])), true
	case proto == 0x86dd && len(frame) >= offIP+40 && frame[offIP]>>4 == 6:
		return netip.AddrFrom16([16]byte(frame[22:38])), netip.AddrFrom16([16]byte(frame[38:54])), true
	}
	return from, to, false
}

// underlayOwner returns the node that has an underlay address, and owner the node that has an address inside the tunnel; 0 when no other node has it.
func underlayOwner(addr netip.Addr) uint16 {
	switch addr {
	case otherNode[4], otherNode[6]:
		return otherID
	case thirdNode[4], thirdNode[6]:
		return thirdID
	}
	return 0
}

func owner(addr netip.Addr) uint16 {
	switch {
	case distantRange[4].Contains(addr), distantRange[6].Contains(addr), addr == otherNode[4], addr == otherNode[6]:
		return otherID
	case addr == thirdPod[4], addr == thirdPod[6], addr == thirdNode[4]: // ipcache of onTunnel has no IPv6 address of this node
		return thirdID
	}
	return 0
}

func isPod(addr netip.Addr) bool {
	return addr == podA.ipv4 || addr == podA.ipv6 || addr == podB.ipv4 || addr == podB.ipv6
}

func isThisNode(addr netip.Addr) bool {
	for _, family := range families {
		if addr == nodeIn[family] || addr == nodeOut[family] || addr == gateways[family] {
			return true
		}
	}
	return false
}

// tunnelledFault describes the fault of a frame that overlay_ingress did not drop; "" when there is none.
func tunnelledFault(s sender, frame []byte, got outcome) string {
	if got.action == actShot {
		return ""
	}
	from, to, ok := ends(frame)
	switch {
	case got.action != actUnspec:
		return "it went elsewhere than to the stack"
	case !bytes.Equal(got.packet, frame):
		return "changed"
	case !ok:
		return "neither IPv4 nor IPv6"
	case owner(from) != s.id:
		return "the inner source is not of the sender"
	case !isPod(to) && !isThisNode(to):
		return "to another node or the outside"
	}
	return markFault(from, identityFromVNI, got.mark)
}

// receivedFault describes the fault of a frame that netdev_ingress did not drop; "" when there is none.
func receivedFault(frame []byte, got outcome) string {
	from, to, ok := ends(frame)
	switch got.action {
	case actShot:
		return ""
	case actUnspec:
		if !bytes.Equal(got.packet, frame) {
			return "changed and left to the device"
		}
		if ok && isThisNode(to) && underlayOwner(from) == 0 && toTunnel(frame) {
			return "of no node, and left to the device"
		}
		return ""
	}
	if len(frame) < innerAt+20 {
		return "decapsulated without an inner packet"
	}
	vni := binary.BigEndian.Uint32(frame[vxlanAt+4:]) >> 8
	source, target, valid := ends(frame[innerAt-14:])
	p, addressesAt := podA, map[bool]int{true: 26, false: 22}[source.Is4()] // before that, the program changes the TTL and its checksum
	if target == podB.ipv4 || target == podB.ipv6 {
		p = podB
	}
	switch {
	case got.action != actRedirect:
		return "an unknown action"
	case !ok || underlayOwner(from) == 0 || to != nodeIn[4] || !toTunnel(frame):
		return "decapsulated, and no packet from another node to the tunnel of this node"
	case frame[vxlanAt] != 8 || vni < 2:
		return "decapsulated with a VNI that no sender has"
	case !valid || owner(source) != underlayOwner(from):
		return "the inner source is not of the sender"
	case !isPod(target) || !addressed(got.packet, p, target):
		return "delivered to the wrong pod"
	case !bytes.Equal(got.packet[addressesAt:], frame[innerAt-14+addressesAt:]):
		return "delivered with other contents"
	}
	return markFault(source, vni, got.mark)
}

// toTunnel reports whether a frame to this node is a whole UDP datagram to the port of the tunnel, without options of IP.
func toTunnel(frame []byte) bool {
	length, at := 0, offIP+20
	switch {
	case mac.Addr(frame[:6]) != uplinkMAC:
		return false
	case frame[offIP] == 0x45 && frame[offIP+9] == protoUDP && binary.BigEndian.Uint16(frame[offIP+6:])&0x3fff == 0:
		length = int(binary.BigEndian.Uint16(frame[offIPv4Total:])) - 20
	case frame[offIP]>>4 == 6 && frame[offIP+6] == protoUDP:
		length, at = int(binary.BigEndian.Uint16(frame[offIPv6Length:])), offIP+40
	}
	return length >= 8 && at+length <= len(frame) && binary.BigEndian.Uint16(frame[at+2:]) == tunnelPort
}

// markFault checks the identity in the mark: that of ipcache, or else that of the VNI if policies know it.
func markFault(from netip.Addr, vni, mark uint32) string {
	var want uint32
	switch from {
	case distantPod[4], distantPod[6], thirdPod[4], thirdPod[6]:
		want = identityDistant
	case otherNode[4], otherNode[6], thirdNode[4]:
		want = 6
	default:
		if vni == identityFromVNI {
			want = vni
		}
	}
	if mark != markOf(want) {
		return "with the identity of another sender"
	}
	return ""
}

// A frame inside the tunnel that leads into the tunnel again gains nothing: to a pod it is a datagram like others, and to this node its inner source is the
// outer source of the second frame.
func TestPrivilegedOverlayIngress_TunnelInTheTunnel(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		pod := podA.addr(family)
		lie := unpadded(inside(thirdPod[family], pod).bytes(t)) // of a pod that the sender does not have
		nested := func(from, to netip.Addr) []byte {
			f := inside(from, to).ports(40000, tunnelPort)
			f.payload = append(gopacket.Payload{8, 0, 0, 0, 0, 0, 6, 0}, lie...)
			return unpadded(f.bytes(t))
		}
		n.arriveAs(outerHeader{from: otherNode[4], vni: 6})
		for name, from := range map[string]netip.Addr{"of a third node": thirdNode[family], "of this node": nodeIn[family], "of a client outside": client[family]} {
			t.Run(name, func(t *testing.T) {
				n.as(t).wantDrop(tunnelledAs, ifTunnel, nested(from, nodeIn[family]), events.TunnelSource, bpf.DirectionIngress)
			})
		}
		for name, c := range map[string]struct{ from, to netip.Addr }{
			"to a pod":                     {distantPod[family], pod},
			"of a pod to this node":        {distantPod[family], nodeIn[family]},
			"of the node to this node":     {otherNode[family], nodeIn[family]},
			"of the node, another address": {otherNode[family], gateways[family]},
		} {
			t.Run(name, func(t *testing.T) {
				n, frame := n.as(t), nested(c.from, c.to)
				n.wantPacket(n.run(tunnelledAs, ifTunnel, frame), actUnspec, frame)
			})
		}
		// The stack gives the packets to this node to the tunnel device again.
		for _, c := range []struct {
			outer  outerHeader
			reason events.Reason
		}{
			{outerHeader{from: distantPod[family], to: nodeIn[family], vni: 6}, events.NoNode},
			{outerHeader{from: otherNode[family], to: nodeIn[family], vni: 6}, events.TunnelSource},
			{outerHeader{from: otherNode[family], to: gateways[family], vni: 6}, events.TunnelKey},
		} {
			n.refill(0)
			n.arriveAs(c.outer)
			n.wantDrop(tunnelledAs, ifTunnel, lie, c.reason, bpf.DirectionIngress)
		}
	})
}

// The identity of a pod that only this node knows does not fit into a VNI: its packets have that of the world.
func TestPrivilegedReal_TunnelIdentityOfThisNode_IsSentAsWorld(t *testing.T) {
	t.Parallel()
	for name, modes := range map[string]uint32{"by the device": 0, "by programs": bpf.EncapSends} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, modes)
			for _, identity := range []uint32{0x01000005, 0x4720} {
				s.facts(podA, func(f *bpf.EndpointFacts) { f.Identity = identity })
				want := identity
				if identity > 0xffffff {
					want = 2
				}
				for _, family := range families {
					frame := unpadded(sent(podA, podA.addr(family), distantPod[family]).bytes(t))
					outer := s.outerOf(t, func() error { return sendFrame(frame) })
					if len(outer) < innerAt {
						t.Fatalf("IPv%d, identity %#x: no frame, last event %+v", family, identity, s.event())
					}
					if got := binary.BigEndian.Uint32(outer[vxlanAt-14+4:]); got != want<<8 {
						t.Errorf("IPv%d, identity %#x: the VNI and the reserved byte are %#x, want %#x", family, identity, got, want<<8)
					}
				}
			}
		})
	}
}
