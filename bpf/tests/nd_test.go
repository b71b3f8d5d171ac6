package tests

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

const (
	naReply   = 0xe0
	naDefence = 0xa0
)

func TestPrivilegedND_GatewayReplies(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	bare := solicitation(podA, podA.ipv6, gateway6, gateway6)
	bare.body = &layers.ICMPv6NeighborSolicitation{TargetAddress: net.IP(gateway6.AsSlice())}
	long := solicitation(podA, podA.ipv6, gateway6, gateway6)
	long.body = &layers.ICMPv6NeighborSolicitation{TargetAddress: net.IP(gateway6.AsSlice()), Options: layers.ICMPv6Options{
		{Type: layers.ICMPv6OptSourceAddress, Data: podA.mac[:]}, {Type: 14, Data: make([]byte, 14)}}}
	for name, c := range map[string]struct {
		in, want icmp6
	}{
		"question": {solicitation(podA, podA.ipv6, solicitedNode(gateway6), gateway6),
			advertisement(podA, podA.ipv6, naReply)},
		"from link-local": {solicitation(podA, linkLocal, solicitedNode(gateway6), gateway6),
			advertisement(podA, linkLocal, naReply)},
		"unicast solicitation": {bare, advertisement(podA, podA.ipv6, naReply)},
		"with more options":    {long, advertisement(podA, podA.ipv6, naReply)},
		"probe for its address": {solicitation(podA, unspecified, solicitedNode(gateway6), gateway6),
			advertisement(podA, allNodes, naDefence)},
	} {
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, c.in.bytes(t)), actRedirect, c.want.bytes(t))
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestPrivilegedND_Drops(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	message := func(kind uint8, src, dst netip.Addr) icmp6 {
		to := podA.host
		if dst.IsMulticast() {
			to = groupMAC(dst)
		}
		return icmp6{from: podA.mac, to: to, src: src, dst: dst, kind: kind}
	}
	routed := solicitation(podA, podA.ipv6, gateway6, gateway6)
	routed.ttl = 254
	coded := solicitation(podA, podA.ipv6, gateway6, gateway6)
	coded.code = 1
	for name, c := range map[string]struct {
		in     icmp6
		reason events.Reason
	}{
		"for another pod":             {solicitation(podA, podA.ipv6, solicitedNode(podB.ipv6), podB.ipv6), events.UnknownNeighbour},
		"as another pod":              {solicitation(podA, podB.ipv6, solicitedNode(gateway6), gateway6), events.SourceIP},
		"as the gateway":              {solicitation(podA, gateway6, solicitedNode(gateway6), gateway6), events.SourceIP},
		"hop limit below 255":         {routed, events.Malformed},
		"with a code":                 {coded, events.Malformed},
		"probe for its own address":   {solicitation(podA, unspecified, solicitedNode(podA.ipv6), podA.ipv6), events.ControlTraffic},
		"probe for its link-local":    {solicitation(podA, unspecified, solicitedNode(linkLocal), linkLocal), events.ControlTraffic},
		"probe for a foreign address": {solicitation(podA, unspecified, solicitedNode(podB.ipv6), podB.ipv6), events.UnknownNeighbour},
		"router solicitation":         {message(133, linkLocal, netip.MustParseAddr("ff02::2")), events.ControlTraffic},
		"listener report":             {message(143, unspecified, netip.MustParseAddr("ff02::16")), events.ControlTraffic},
		"listener report, version 1":  {message(131, linkLocal, groups[6]), events.ControlTraffic},
		"listener done":               {message(132, linkLocal, netip.MustParseAddr("ff02::2")), events.ControlTraffic},
		"neighbour advertisement":     {message(136, podA.ipv6, allNodes), events.ControlTraffic},
		"router advertisement":        {message(134, linkLocal, allNodes), events.ForbiddenICMPv6},
		"router advertisement to b":   {message(134, podA.ipv6, podB.ipv6), events.ForbiddenICMPv6},
		"redirect":                    {message(137, linkLocal, podB.ipv6), events.ForbiddenICMPv6},
		"listener query":              {message(130, linkLocal, allNodes), events.ForbiddenICMPv6},
		"inverse solicitation":        {message(141, podA.ipv6, podB.ipv6), events.ForbiddenICMPv6},
		"inverse advertisement":       {message(142, podA.ipv6, podB.ipv6), events.ForbiddenICMPv6},
		"certification path":          {message(149, podA.ipv6, podB.ipv6), events.ForbiddenICMPv6},
		"multicast router":            {message(152, podA.ipv6, podB.ipv6), events.ForbiddenICMPv6},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			in := c.in.bytes(t)
			n.wantDrop(bpf.PodEgress, ifPodA, in, c.reason, bpf.DirectionEgress)
		})
	}
}

// chain inserts extension headers between the IPv6 header and the payload, built by hand: gopacket supports few of them.
func chain(t *testing.T, f flow, last layers.IPProtocol, tail []byte, headers ...[]byte) []byte {
	t.Helper()
	var payload []byte
	first := last
	for i, h := range headers {
		kind := layers.IPProtocol(h[0])
		if i == 0 {
			first = kind
		}
		next := last
		if i+1 < len(headers) {
			next = layers.IPProtocol(headers[i+1][0])
		}
		payload = append(append(payload, byte(next)), h[1:]...)
	}
	proto, network, ip := f.network()
	network.(*layers.IPv6).NextHeader = first // also 0, which flow cannot express
	return serialize(t, ether(f.from, f.to, proto), ip, gopacket.Payload(append(payload, tail...)))
}

// Extension headers for [chain]; the first byte is the kind, the rest as on the wire.
func hopByHop() []byte { return []byte{0, 0, 1, 4, 0, 0, 0, 0} }
func routing() []byte  { return []byte{43, 0, 0, 0, 0, 0, 0, 0} }
func destOptions(n byte) []byte {
	return append([]byte{60, n, 1, 4 + 8*n}, make([]byte, 4+8*int(n))...)
}
func auth() []byte               { return append([]byte{51, 4}, make([]byte, 22)...) }
func fragment(at uint16) []byte  { return []byte{44, 0, byte(at >> 8), byte(at), 0, 0, 0, 9} }
func icmpBytes(kind byte) []byte { return append([]byte{kind, 0, 0, 0}, make([]byte, 20)...) }

func TestPrivilegedIPv6_ExtensionHeaders(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	f := sent(podA, podA.ipv6, podB.ipv6)
	const icmp, udp = layers.IPProtocolICMPv6, layers.IPProtocolUDP
	many := [][]byte{hopByHop(), routing(), destOptions(0), destOptions(1), auth(), destOptions(2), destOptions(0)}
	for name, c := range map[string]struct {
		in     []byte
		reason events.Reason // 0 when the packet must pass
	}{
		"advertisement after options": {chain(t, f, icmp, icmpBytes(134), hopByHop()), events.ForbiddenICMPv6},
		"advertisement after all kinds of extensions": {chain(t, f, icmp, icmpBytes(134), hopByHop(), routing(), auth(),
			destOptions(3)), events.ForbiddenICMPv6},
		"advertisement in a first fragment": {chain(t, f, icmp, icmpBytes(134), fragment(1)), events.ForbiddenICMPv6},
		"redirect after six extensions":     {chain(t, f, icmp, icmpBytes(137), many[:6]...), events.ForbiddenICMPv6},
		"solicitation after options":        {chain(t, f, icmp, icmpBytes(135), destOptions(0)), events.ForbiddenICMPv6},
		"more than six":                     {chain(t, f, icmp, icmpBytes(128), many...), events.IPv6Extension},
		"ends inside an extension":          {chain(t, f, udp, nil, hopByHop(), routing()[:2]), events.IPv6Extension},
		"length leads out": {chain(t, f, icmp, icmpBytes(134),
			append([]byte{60, 200}, make([]byte, 6)...)), events.Truncated},
		"extension that leads out to another": {chain(t, f, 60, icmpBytes(134),
			append([]byte{60, 200}, make([]byte, 6)...)), events.IPv6Extension},
		"echo after six extensions":               {chain(t, f, icmp, icmpBytes(128), many[:6]...), 0},
		"a later fragment of anything":            {chain(t, f, icmp, icmpBytes(134), fragment(8)), events.UnknownFragment},
		"first fragment of a datagram":            {chain(t, f, udp, make([]byte, 24), fragment(1)), 0},
		"nothing follows":                         {chain(t, f, 59, nil, destOptions(0)), 0},
		"a later fragment that ends in extension": {chain(t, f, 60, make([]byte, 3), fragment(64)), events.UnknownFragment},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			if c.reason != 0 {
				n.wantDrop(bpf.PodEgress, ifPodA, c.in, c.reason, bpf.DirectionEgress)
				return
			}
			got := n.run(bpf.PodEgress, ifPodA, c.in)
			want := append([]byte(nil), c.in...)
			copy(want, podB.mac[:])
			copy(want[6:], podB.host[:])
			want[14+7]--
			n.wantPacket(got, actRedirect, want)
		})
	}
}

func TestPrivilegedND_NoGateway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	facts := podA.facts()
	facts.Flags = bpf.FlagIPv4
	n.update(bpf.MapEndpointFacts, uint32(podA.id), facts)
	in := solicitation(podA, linkLocal, solicitedNode(gateway6), gateway6).bytes(t)
	n.wantDrop(bpf.PodEgress, ifPodA, in, events.UnknownNeighbour, bpf.DirectionEgress)
}
