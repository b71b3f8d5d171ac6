package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

var (
	families = []int{4, 6}
	outside  = map[int]netip.Addr{4: netip.MustParseAddr("192.0.2.7"), 6: netip.MustParseAddr("2001:db8::7")}
	gateways = map[int]netip.Addr{4: gateway4, 6: gateway6}
	// Destinations that the stack of a node accepts, or might accept, and that are no address of the node for a policy lookup.
	nodeLocal = map[int][]netip.Addr{
		4: {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.1")},
		6: {netip.MustParseAddr("fe80::1"), netip.MustParseAddr("febf::1")},
	}
	groups = map[int]netip.Addr{4: netip.MustParseAddr("224.0.0.251"), 6: netip.MustParseAddr("ff02::fb")}
)

// eachFamily runs a test once for each family, each time on a separate node.
func eachFamily(t *testing.T, f func(t *testing.T, n *node, family int)) {
	t.Helper()
	for _, family := range families {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			t.Parallel()
			f(t, newNode(t), family)
		})
	}
}

func TestPrivilegedPodEgress_ToLocalPod(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		a, b := podA.addr(family), podB.addr(family)

		// Pod a sends to pod b: with a decremented TTL, with the addresses of b's link, directly into b's namespace.
		in := sent(podA, a, b).bytes(t)
		got := n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, Mark: 0x1234}, in)
		n.wantPacket(got, actRedirect, received(podB, a, b).withTTL(63).bytes(t))
		if got.mark != 0 {
			t.Errorf("the pod gets the mark %#x", got.mark)
		}

		// Pod b replies on the same path.
		got = n.run(bpf.PodEgress, ifPodB, sent(podB, b, a).bytes(t))
		n.wantPacket(got, actRedirect, received(podA, b, a).withTTL(63).bytes(t))

		// Both packets were counted once in each direction.
		for _, direction := range []uint8{bpf.DirectionEgress, bpf.DirectionIngress} {
			if c := n.count(events.Forwarded, direction); c.Packets != 2 || c.Bytes != 2*uint64(len(in)) {
				t.Errorf("direction %d: %+v", direction, c)
			}
		}
	})
}

func TestPrivilegedPodEgress_UpToTheStack(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		a := podA.addr(family)
		mark := uint32(0x34100f12) // identity 0x123410
		passed := uint64(0)
		for name, f := range map[string]flow{
			"to the node":              sent(podA, a, gateways[family]),
			"to the world":             sent(podA, a, outside[family]),
			"expires at the next hop":  sent(podA, a, podB.addr(family)).withTTL(1),
			"to the world, last hop":   sent(podA, a, outside[family]).withTTL(1),
			"to an unused pod address": sent(podA, a, podB.addr(family).Next()),
		} {
			in := f.bytes(t)
			got := n.run(bpf.PodEgress, ifPodA, in)
			n.wantPacket(got, actOK, in)
			if got.mark != mark {
				t.Errorf("%s: mark %#x, want %#x", name, got.mark, mark)
			}
			passed++
			out, received := n.count(events.Forwarded, bpf.DirectionEgress), n.count(events.Forwarded, bpf.DirectionIngress)
			if out.Packets != passed || received.Packets != 0 {
				t.Errorf("%s: %d packets sent and %d received, want %d and none", name, out.Packets, received.Packets, passed)
			}
		}
	})
}

// Every value of the TTL results in a correct checksum, also where the sum wraps.
func TestPrivilegedPodEgress_DecrementsTTL(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		a, b := podA.addr(family), podB.addr(family)
		for ttl := 2; ttl <= 255; ttl++ {
			got := n.run(bpf.PodEgress, ifPodA, sent(podA, a, b).withTTL(uint8(ttl)).bytes(t))
			n.wantPacket(got, actRedirect, received(podB, a, b).withTTL(uint8(ttl-1)).bytes(t))
		}
	})
}

// A checksum for which decrementing the TTL wraps the sum: it becomes 0, never 0xffff.
func TestPrivilegedPodEgress_ChecksumWraps(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	build := func(f flow, id uint16) []byte {
		proto, network, ip := f.network()
		network.(*layers.IPv4).Id = id
		return serialize(t, ether(f.from, f.to, proto), ip, gopacket.Payload("some bytes"))
	}
	wrapped := 0
	for id := range 1 << 16 {
		in := build(sent(podA, podA.ipv4, podB.ipv4), uint16(id))
		if check := binary.BigEndian.Uint16(in[offIPv4Check:]); check < 0xfe00 {
			continue
		}
		wrapped++
		want := build(received(podB, podA.ipv4, podB.ipv4).withTTL(63), uint16(id))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, in), actRedirect, want)
	}
	if wrapped == 0 {
		t.Error("no identification gave such a checksum")
	}
}

func TestPrivilegedPodEgress_Drops(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, shared *node, family int) {
		a, b := podA.addr(family), podB.addr(family)
		wrongMAC := mac.Addr{2, 9, 9, 9, 9, 9}
		spoofedMAC, otherMAC := sent(podA, a, b), sent(podA, a, b)
		spoofedMAC.from, otherMAC.to = wrongMAC, wrongMAC
		group := sent(podA, a, groups[family])
		group.to = mac.Addr{1, 0, 0x5e, 0, 0, 0xfb}
		for name, c := range map[string]struct {
			flow   flow
			reason events.Reason
		}{
			"another pod's source":  {sent(podA, b, outside[family]), events.SourceIP},
			"the gateway's source":  {sent(podA, gateways[family], b), events.SourceIP},
			"a source from outside": {sent(podA, outside[family], b), events.SourceIP},
			"another source MAC":    {spoofedMAC, events.SourceMAC},
			"another target MAC":    {otherMAC, events.DestinationMAC},
			"a group":               {group, events.Multicast},
			"a target on the node":  {sent(podA, a, nodeLocal[family][0]), events.StaleIP},
			"another one":           {sent(podA, a, nodeLocal[family][1]), events.StaleIP},
		} {
			t.Run(name, func(t *testing.T) {
				n := shared.as(t)
				in := c.flow.bytes(t)
				event := n.wantDrop(bpf.PodEgress, ifPodA, in, c.reason, bpf.DirectionEgress)
				if event != nil &&
					(event.Endpoint != podA.id || event.SourceIdentity != identityPod+11 || event.IfIndex != ifPodA || event.DestinationID != 0) {
					t.Errorf("event %+v", event)
				}
			})
		}
	})
}

func TestPrivilegedPodEgress_UnmanagedLink(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
		n.wantDrop(bpf.PodEgress, ifUnmanaged, in, events.UnknownSender, bpf.DirectionEgress)
	})
}

// While a slot changes its endpoint, the link may temporarily lead to an endpoint that is on another link.
func TestPrivilegedPodEgress_LinkOfAnotherEndpoint(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.update(bpf.MapLinks, uint32(ifUnmanaged), uint32(podA.id))
		in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
		n.wantDrop(bpf.PodEgress, ifUnmanaged, in, events.UnknownSender, bpf.DirectionEgress)
	})
}

func TestPrivilegedPodEgress_Policy(t *testing.T) {
	t.Parallel()
	for _, id := range []uint32{0, 2, 77} {
		t.Run(fmt.Sprintf("policy %d of the sender", id), func(t *testing.T) {
			t.Parallel()
			eachFamily(t, func(t *testing.T, n *node, family int) {
				a := podA
				a.pOut = id
				n.put(a)
				in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
				if e := n.wantDrop(bpf.PodEgress, ifPodA, in, events.PolicyDenied, bpf.DirectionEgress); e != nil && e.DestinationID != 0 {
					t.Errorf("event %+v", e)
				}
			})
		})
		t.Run(fmt.Sprintf("policy %d of the receiver", id), func(t *testing.T) {
			t.Parallel()
			eachFamily(t, func(t *testing.T, n *node, family int) {
				b := podB
				b.policyIn = id
				n.put(b)
				in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
				e := n.wantDrop(bpf.PodEgress, ifPodA, in, events.PolicyDenied, bpf.DirectionIngress)
				if e != nil && (e.Endpoint != podA.id || e.DestinationID != uint32(podB.id) || e.DestinationIdentity != identityPod+12) {
					t.Errorf("event %+v", e)
				}
			})
		})
	}
}

func TestPrivilegedPodEgress_DestinationBeingDeleted(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)

		// The slot was reused by an endpoint with other addresses.
		moved := podB
		moved.ipv4, moved.ipv6 = moved.ipv4.Next(), moved.ipv6.Next()
		n.update(bpf.MapEndpointFacts, uint32(podB.id), moved.facts())
		n.wantDrop(bpf.PodEgress, ifPodA, in, events.StaleIP, bpf.DirectionEgress)

		// The slot is free.
		n.update(bpf.MapEndpointFacts, uint32(podB.id), bpf.EndpointFacts{Revision: 9})
		n.wantDrop(bpf.PodEgress, ifPodA, in, events.NoEndpoint, bpf.DirectionEgress)
	})
}

// An endpoint with one family may not send in the other, and receives no packets of the other.
func TestPrivilegedPodEgress_OtherFamily(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		facts := podA.facts()
		facts.Flags = map[int]uint16{4: bpf.FlagIPv6, 6: bpf.FlagIPv4}[family]
		n.update(bpf.MapEndpointFacts, uint32(podA.id), facts)
		in := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
		n.wantDrop(bpf.PodEgress, ifPodA, in, events.SourceIP, bpf.DirectionEgress)
		in = sent(podB, podB.addr(family), podA.addr(family)).bytes(t)
		n.wantDrop(bpf.PodEgress, ifPodB, in, events.StaleIP, bpf.DirectionEgress)
	})
}
