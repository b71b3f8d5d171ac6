package tests

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

// stackMAC is the address that the stack writes on links without neighbours: the device's own address.
var stackMAC = mac.Addr{2, 7, 7, 7, 7, 7}

// fromStack is a packet as the node's stack hands it to a device.
func fromStack(src, dst netip.Addr) flow {
	return flow{from: stackMAC, to: stackMAC, src: src, dst: dst}
}

func TestPrivilegedHostToPod(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		gw, a := gateways[family], podA.addr(family)

		// The node's route leads to waggle_host, from where the packet goes to the pod's link.
		onHost := n.run(bpf.HostEgress, ifHost, fromStack(gw, a).bytes(t))
		n.wantPacket(onHost, actRedirect, received(podA, gw, a).bytes(t))

		// The link forwards it, with the same bytes.
		onLink := n.run(bpf.PodIngress, ifPodA, onHost.packet)
		n.wantPacket(onLink, actOK, received(podA, gw, a).bytes(t))

		// Each program counted it.
		if c := n.count(events.Forwarded, bpf.DirectionEgress); c.Packets != 1 {
			t.Errorf("on waggle_host: %+v", c)
		}
		if c := n.count(events.Forwarded, bpf.DirectionIngress); c.Packets != 1 {
			t.Errorf("on the link: %+v", c)
		}

		// The pod's reply goes up to the stack.
		back := sent(podA, a, gw).bytes(t)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, back), actOK, back)
	})
}

func TestPrivilegedHostEgress_NotForPods(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for name, f := range map[string]flow{
			"the node's own address": fromStack(gateways[family], gateways[family]),
			"a group":                fromStack(gateways[family], groups[family]),
		} {
			in := f.bytes(t)
			n.wantPacket(n.run(bpf.HostEgress, ifHost, in), actUnspec, in)
			if t.Failed() {
				t.Fatal(name)
			}
		}
	})
	t.Run("ARP", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		in := arp(t, stackMAC, broadcast, arpRequest, stackMAC, gateway4, mac.Addr{}, podA.ipv4)
		n.wantPacket(n.run(bpf.HostEgress, ifHost, in), actUnspec, in)
	})
}

func TestPrivilegedHostEgress_Drops(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		gw, b := gateways[family], podB.addr(family)

		// No endpoint has the address, so no packet may leave for it. The node itself sent the packet.
		in := fromStack(gw, b.Next()).bytes(t)
		e := n.wantDrop(bpf.HostEgress, ifHost, in, events.NoEndpoint, bpf.DirectionEgress)
		if e != nil && (e.SourceIdentity != 1 || e.Endpoint != 0 || e.IfIndex != ifHost) {
			t.Errorf("event %+v", e)
		}

		// The address still leads to a deleted endpoint.
		n.update(bpf.MapEndpointFacts, uint32(podB.id), bpf.EndpointFacts{Revision: 9})
		in = fromStack(gw, b).bytes(t)
		n.wantDrop(bpf.HostEgress, ifHost, in, events.StaleIP, bpf.DirectionEgress)

		// A truncated packet.
		in = patch(in[:offIP+44:offIP+44], offIPv4Total, 0, 200)
		n.wantDrop(bpf.HostEgress, ifHost, in, events.Truncated, bpf.DirectionEgress)
	})
}

// The endpoint's slot was reused by another endpoint before the address was removed.
func TestPrivilegedHostEgress_StaleAddress(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		moved := podB
		moved.ipv4, moved.ipv6 = moved.ipv4.Next(), moved.ipv6.Next()
		n.update(bpf.MapEndpointFacts, uint32(podB.id), moved.facts())
		in := received(podB, gateways[family], podB.addr(family)).bytes(t)
		n.wantDrop(bpf.PodIngress, ifPodB, in, events.UnknownTarget, bpf.DirectionIngress)
	})
}

func TestPrivilegedPodIngress_Identity(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		closed := podA
		closed.policyIn = 0
		n.put(closed)
		bits := map[int]int{4: 24, 6: 64}[family]
		peer := outside[family]
		far := map[int]netip.Addr{4: netip.MustParseAddr("203.0.113.1"), 6: netip.MustParseAddr("2a00::1")}[family]
		n.update(bpf.MapIpcachePrefixes, bpf.NewLpmKey(netip.PrefixFrom(peer, bits)), bpf.IpcacheEntry{Identity: 700})
		n.update(bpf.MapIpcachePrefixes, bpf.NewLpmKey(netip.PrefixFrom(peer, 8)), bpf.IpcacheEntry{Identity: 600})
		n.update(bpf.MapIpcache, bpf.NewAddrKey(peer.Next()), bpf.IpcacheEntry{Identity: 800})
		in := func(src netip.Addr) []byte { return received(podA, src, podA.addr(family)).bytes(t) }
		for name, c := range map[string]struct {
			src     netip.Addr
			ifindex uint32 // ingress device of the packet on the node
			want    uint32
		}{
			"created on the node":                 {gateways[family], 0, 1},
			"created on the node, any source":     {peer, 0, 1},
			"from outside, by the longest prefix": {peer, ifUplink, 700},
			"from outside, by its address":        {peer.Next(), ifUplink, 800},
			"from outside, unknown":               {far, ifUplink, 2},
			"claims to be the node":               {gateways[family], ifUplink, 2},
		} {
			got := n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: c.ifindex}, in(c.src))
			event := n.event()
			if got.action != actShot || event == nil || event.Reason != events.PolicyDenied {
				t.Fatalf("%s: action %d, event %+v", name, got.action, event)
			}
			if event.SourceIdentity != c.want || event.DestinationIdentity != identityPod+11 || event.DestinationID != 11 || event.Endpoint != 11 {
				t.Errorf("%s: event %+v, want identity %d", name, event, c.want)
			}
		}
		if c := n.count(events.PolicyDenied, bpf.DirectionIngress); c.Packets != 6 {
			t.Errorf("counted %+v", c)
		}
	})
}

func TestPrivilegedPodIngress_RewritesAddresses(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		a := podA.addr(family)
		got := n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, fromStack(outside[family], a).bytes(t))
		n.wantPacket(got, actOK, received(podA, outside[family], a).bytes(t))
	})
}

func TestPrivilegedPodIngress_Drops(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	igmp := fromStack(gateway4, groups[4])
	igmp.proto = layers.IPProtocolIGMP
	fromGateway := func(kind uint8, dst netip.Addr) []byte {
		return icmp6{from: stackMAC, to: stackMAC, src: gateway6, dst: dst, kind: kind}.bytes(t)
	}
	v4 := fromStack(gateway4, podA.ipv4).bytes(t)
	v6 := fromStack(gateway6, podA.ipv6).bytes(t)
	for name, c := range map[string]struct {
		ifindex uint32
		in      []byte
		reason  events.Reason
	}{
		"IPv4 for another pod":            {ifPodA, fromStack(gateway4, podB.ipv4).bytes(t), events.UnknownTarget},
		"IPv6 for another pod":            {ifPodA, fromStack(gateway6, podB.ipv6).bytes(t), events.UnknownTarget},
		"IPv4 on a link without endpoint": {ifUnmanaged, v4, events.NoEndpoint},
		"IPv6 on a link without endpoint": {ifUnmanaged, v6, events.NoEndpoint},
		"IPv4 group":                      {ifPodA, fromStack(gateway4, groups[4]).bytes(t), events.Multicast},
		"IPv6 group":                      {ifPodA, fromStack(gateway6, groups[6]).bytes(t), events.Multicast},
		"IGMP":                            {ifPodA, igmp.bytes(t), events.ControlTraffic},
		"listener report":                 {ifPodA, fromGateway(143, netip.MustParseAddr("ff02::16")), events.ControlTraffic},
		"neighbour solicitation":          {ifPodA, fromGateway(135, solicitedNode(podA.ipv6)), events.ControlTraffic},
		"router advertisement":            {ifPodA, fromGateway(134, podA.ipv6), events.ControlTraffic},
		"ARP": {ifPodA, arp(t, stackMAC, broadcast, arpRequest, stackMAC, gateway4, mac.Addr{},
			podA.ipv4), events.ControlTraffic},
		"LLDP":              {ifPodA, patch(v4, offEtherType, 0x88, 0xcc), events.UnknownL3},
		"IPv4 of version 5": {ifPodA, patch(v4, offIP, 0x55), events.Malformed},
		"IPv6 of version 7": {ifPodA, patch(v6, offIP, 0x70), events.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			n.wantDrop(bpf.PodIngress, c.ifindex, c.in, c.reason, bpf.DirectionIngress)
		})
	}
}

// The kernel replies to an echo request of the node by itself; pod_ingress must not treat it as control traffic of the link.
func TestPrivilegedPodIngress_Echo(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := icmp6{from: stackMAC, to: stackMAC, src: gateway6, dst: podA.ipv6, kind: layers.ICMPv6TypeEchoRequest, ttl: 64}
	want := in
	want.from, want.to = podA.host, podA.mac
	n.wantPacket(n.run(bpf.PodIngress, ifPodA, in.bytes(t)), actOK, want.bytes(t))
}
