package bpf

import (
	"net/netip"
	"testing"
)

// forgetReplies deletes the entries that translate replies from outside, and makes a tick go by.
func forgetReplies(n *node, family int) {
	n.t.Helper()
	if family == 4 {
		clearMap[NatKey4](n.t, n, MapNat4, func(k NatKey4) bool { return podEgressNatPlace(k.Place) == podEgressNatPlaceNAT_FROM_OUTSIDE })
		changeNat(n, MapNat4, func(_ NatKey4, e *NatEntry4) { e.Expires-- })
		return
	}
	clearMap[NatKey6](n.t, n, MapNat6, func(k NatKey6) bool { return podEgressNatPlace(k.Place) == podEgressNatPlaceNAT_FROM_OUTSIDE })
	changeNat(n, MapNat6, func(_ NatKey6, e *NatEntry6) { e.Expires-- })
}

// The next packet of the initiator restores the missing entry of the replies; where another flow uses the port now, the flow gets another one.
func TestPrivilegedNetdevEgress_RestoresTheEntryOfReplies(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		first, second := on(podA.addr(family), 40000), on(podB.addr(family), 40000)
		own, server := on(nodeOut[family], 40000), on(client[family], 53)
		for name, kind := range map[string]func(f flow) []byte{
			"UDP": func(f flow) []byte { return f.bytes(t) },
			"TCP": func(f flow) []byte { return f.tcp(t, "A") },
		} {
			n.wantPacket(n.sendFrom(podA, kind(going(first, server))), actUnspec, kind(going(own, server)))
			n.wantPacket(n.run(NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, first)))
			forgetReplies(n, family)
			n.wantPacket(n.sendFrom(podA, kind(going(first, server))), actUnspec, kind(going(own, server)))
			n.wantPacket(n.run(NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, first)))

			forgetReplies(n, family)
			n.wantPacket(n.sendFrom(podB, kind(going(second, server))), actUnspec, kind(going(own, server)))
			got := n.sendFrom(podA, kind(going(first, server)))
			port := sourcePort(family, got.packet)
			if port == 40000 {
				t.Fatalf("%s: two pods send from one port", name)
			}
			other := netip.AddrPortFrom(own.Addr(), port)
			n.wantPacket(got, actUnspec, kind(going(other, server)))
			n.wantPacket(n.run(NetdevIngress, ifUplink, kind(coming(server, other))), actUnspec, kind(coming(server, first)))
			n.wantPacket(n.run(NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, second)))
			n.wantNat(family, 4)
			clearNat(n, family)
		}
	})
}
