package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

const (
	arpRequest = 1
	arpReply   = 2
)

func TestPrivilegedARP_GatewayReplies(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for name, sender := range map[string]netip.Addr{"question": podA.ipv4, "probe": netip.IPv4Unspecified()} {
		in := arp(t, podA.mac, broadcast, arpRequest, podA.mac, sender, mac.Addr{}, gateway4)
		got := n.run(bpf.PodEgress, ifPodA, in)
		n.wantPacket(got, actRedirect, arp(t, podA.host, podA.mac, arpReply, podA.host, gateway4, podA.mac, sender))
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestPrivilegedARP_Drops(t *testing.T) {
	t.Parallel()
	shared := newNode(t)
	other := mac.Addr{2, 9, 9, 9, 9, 9}
	request := func(senderMAC mac.Addr, sender, target netip.Addr) []byte {
		return arp(t, podA.mac, broadcast, arpRequest, senderMAC, sender, mac.Addr{}, target)
	}
	token := request(podA.mac, podA.ipv4, gateway4)
	token[15] = 6 // token ring
	for name, c := range map[string]struct {
		in     []byte
		reason events.Reason
	}{
		"for another pod":           {request(podA.mac, podA.ipv4, podB.ipv4), events.UnknownNeighbour},
		"for the world":             {request(podA.mac, podA.ipv4, outside[4]), events.UnknownNeighbour},
		"as another pod":            {request(podA.mac, podB.ipv4, gateway4), events.SourceIP},
		"as the gateway":            {request(podA.mac, gateway4, gateway4), events.SourceIP},
		"with a foreign MAC inside": {request(other, podA.ipv4, gateway4), events.SourceMAC},
		"with a foreign MAC outside": {arp(t, other, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, gateway4),
			events.SourceMAC},
		"announcement":              {request(podA.mac, podA.ipv4, podA.ipv4), events.ControlTraffic},
		"probe for its own address": {request(podA.mac, netip.IPv4Unspecified(), podA.ipv4), events.ControlTraffic},
		"reply": {arp(t, podA.mac, podA.host, arpReply, podA.mac, podA.ipv4, podA.host, gateway4),
			events.ControlTraffic},
		"spoofed reply":       {arp(t, podA.mac, podA.host, arpReply, podA.mac, gateway4, podA.host, gateway4), events.SourceIP},
		"cut off":             {request(podA.mac, podA.ipv4, gateway4)[:40], events.Truncated},
		"of another hardware": {token, events.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared.as(t)
			n.wantDrop(bpf.PodEgress, ifPodA, c.in, c.reason, bpf.DirectionEgress)
		})
	}
}

// Without a gateway of the family, programs send no ARP reply, not even for 0.0.0.0.
func TestPrivilegedARP_NoGateway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	facts := podA.facts()
	facts.GatewayIpv4 = 0
	n.update(bpf.MapEndpointFacts, uint32(podA.id), facts)
	in := arp(t, podA.mac, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, netip.IPv4Unspecified())
	n.wantDrop(bpf.PodEgress, ifPodA, in, events.UnknownNeighbour, bpf.DirectionEgress)
}
