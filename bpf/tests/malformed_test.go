package tests

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// Offsets of fields in a frame.
const (
	offEtherType  = 12
	offIP         = 14
	offIPv4Total  = offIP + 2
	offIPv4Check  = offIP + 10
	offIPv6Length = offIP + 4
)

// patch returns a copy of a packet with other bytes at an offset.
func patch(packet []byte, at int, bytes ...byte) []byte {
	c := append([]byte(nil), packet...)
	copy(c[at:], bytes)
	return c
}

func TestPrivilegedPodEgress_BadFrames(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	v4 := sent(podA, podA.ipv4, podB.ipv4).bytes(t)
	v6 := sent(podA, podA.ipv6, podB.ipv6).bytes(t)
	tagged := func(f flow, kind layers.EthernetType) []byte {
		proto, _, ip := f.network()
		return serialize(t, ether(f.from, f.to, kind), &layers.Dot1Q{VLANIdentifier: 5, Type: proto}, ip,
			gopacket.Payload(make([]byte, 20)))
	}
	cut := func(b []byte, n int) []byte { return b[:n:n] }
	for name, c := range map[string]struct {
		in     []byte
		reason events.Reason
	}{
		"IPv4 with a tag":                    {tagged(sent(podA, podA.ipv4, podB.ipv4), layers.EthernetTypeDot1Q), events.VLANFilter},
		"IPv6 with a tag":                    {tagged(sent(podA, podA.ipv6, podB.ipv6), layers.EthernetTypeDot1Q), events.VLANFilter},
		"IPv4 with a service tag":            {tagged(sent(podA, podA.ipv4, podB.ipv4), layers.EthernetTypeQinQ), events.VLANFilter},
		"a length instead of a type":         {patch(v4, offEtherType, 0x00, 0x40), events.UnsupportedL2},
		"MPLS":                               {patch(v4, offEtherType, 0x88, 0x47), events.UnknownL3},
		"LLDP":                               {patch(v4, offEtherType, 0x88, 0xcc), events.UnknownL3},
		"IPv4 shorter than its length field": {cut(v4, offIP+30), events.Truncated},
		"IPv4 of version 5":                  {patch(v4, offIP, 0x55), events.Malformed},
		"IPv4 header of 16 bytes":            {patch(v4, offIP, 0x44), events.Malformed},
		"IPv4 header beyond the total":       {patch(v4, offIPv4Total, 0, 19), events.Malformed},
		"IPv4 without a total length":        {patch(v4, offIPv4Total, 0, 0), events.Malformed},
		"IPv4 options beyond the end":        {patch(patch(cut(v4, offIP+20), offIP, 0x4f), offIPv4Total, 0, 60), events.Truncated},
		"IPv6 shorter than its length field": {cut(v6, len(v6)-1), events.Truncated},
		"IPv6 of version 7":                  {patch(v6, offIP, 0x70), events.Malformed},
		"IPv6 with a huge length":            {patch(v6, offIPv6Length, 0xff, 0xff), events.Truncated},
		"IPv4 as IPv6":                       {patch(v4, offEtherType, 0x86, 0xdd), events.Malformed},
		"IPv6 as IPv4":                       {patch(v6, offEtherType, 0x08, 0x00), events.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			n.wantDrop(bpf.PodEgress, ifPodA, c.in, c.reason, bpf.DirectionEgress)
		})
	}
}

// A packet that is truncated at any position after the IP header is dropped with this reason and has no other effect. PROG_TEST_RUN accepts no shorter
// packets; TestPrivilegedReal_ShortFrames sends those.
func TestPrivilegedPodEgress_EveryLength(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		whole := sent(podA, podA.addr(family), podB.addr(family)).bytes(t)
		first := map[int]int{4: offIP + 20, 6: offIP + 40}[family]
		end := map[int]int{4: first + 8 + len("some bytes"), 6: len(whole)}[family] // the rest is padding
		for length := first; length < end; length++ {
			if got := n.run(bpf.PodEgress, ifPodA, whole[:length:length]); got.action != actShot {
				t.Errorf("%d bytes: action %d", length, got.action)
			}
		}
		if c := n.count(events.Truncated, bpf.DirectionEgress); int(c.Packets) != end-first {
			t.Errorf("%d of %d were truncated", c.Packets, end-first)
		}
	})
}

func TestPrivilegedPodEgress_IPv4Options(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	build := func(f flow) []byte {
		proto, network, ip := f.network()
		network.(*layers.IPv4).Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: make([]byte, 5)},
			{OptionType: 0}}
		return serialize(t, ether(f.from, f.to, proto), ip, gopacket.Payload(make([]byte, 20)))
	}
	got := n.run(bpf.PodEgress, ifPodA, build(sent(podA, podA.ipv4, podB.ipv4)))
	n.wantPacket(got, actRedirect, build(received(podB, podA.ipv4, podB.ipv4).withTTL(63)))
}

// Padding up to the minimum size of a frame is not part of the IP packet.
func TestPrivilegedPodEgress_Padding(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		a, b := podA.addr(family), podB.addr(family)
		padding := make([]byte, 18)
		got := n.run(bpf.PodEgress, ifPodA, append(sent(podA, a, b).bytes(t), padding...))
		n.wantPacket(got, actRedirect, append(received(podB, a, b).withTTL(63).bytes(t), padding...))
	})
}

// A super-packet beyond 64 kB has no total length; only segmentation offload creates one.
func TestPrivilegedPodEgress_BigTCP(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := patch(sent(podA, podA.ipv4, podB.ipv4).bytes(t), offIPv4Total, 0, 0)
	// The header's checksum was computed with the removed length.
	length := binary.BigEndian.Uint16(sent(podA, podA.ipv4, podB.ipv4).bytes(t)[offIPv4Total:])
	binary.BigEndian.PutUint16(in[offIPv4Check:], binary.BigEndian.Uint16(in[offIPv4Check:])+length)
	got := n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, GsoSegs: 2, GsoSize: 10}, in)
	if got.action != actRedirect {
		t.Errorf("action %d, event %+v", got.action, n.event())
	}
}

func TestPrivilegedPodEgress_GroupsAndBroadcast(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	igmp := sent(podA, podA.ipv4, netip.MustParseAddr("224.0.0.22"))
	igmp.proto = layers.IPProtocolIGMP
	limited := sent(podA, podA.ipv4, netip.MustParseAddr("255.255.255.255"))
	limited.to = broadcast
	for name, c := range map[string]struct {
		flow   flow
		reason events.Reason
	}{
		"IGMP report":                   {igmp, events.ControlTraffic},
		"limited broadcast":             {limited, events.Multicast},
		"IPv6 group from link-local":    {sent(podA, linkLocal, groups[6]), events.Multicast},
		"a spoofed IPv6 group":          {sent(podA, podB.ipv6, groups[6]), events.SourceIP},
		"link-local to another pod":     {sent(podA, linkLocal, podB.ipv6), events.SourceIP},
		"unknown source to another pod": {sent(podA, unspecified, podB.ipv6), events.SourceIP},
		"unknown source to the world":   {sent(podA, netip.IPv4Unspecified(), outside[4]), events.SourceIP},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			in := c.flow.bytes(t)
			n.wantDrop(bpf.PodEgress, ifPodA, in, c.reason, bpf.DirectionEgress)
		})
	}
}
