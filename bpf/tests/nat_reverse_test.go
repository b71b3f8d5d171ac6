package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// forgetReplies deletes the entries that translate replies at a place, and waits for the next tick.
func forgetReplies(n *node, family int, place bpf.NatPlace) {
	n.t.Helper()
	if family == 4 {
		clearMap[bpf.NatKey4](n.t, n, bpf.MapNat4, func(k bpf.NatKey4) bool { return bpf.NatPlace(k.Place) == place })
		changeNat(n, bpf.MapNat4, func(_ bpf.NatKey4, e *bpf.NatEntry4) { e.Expires-- })
		return
	}
	clearMap[bpf.NatKey6](n.t, n, bpf.MapNat6, func(k bpf.NatKey6) bool { return bpf.NatPlace(k.Place) == place })
	changeNat(n, bpf.MapNat6, func(_ bpf.NatKey6, e *bpf.NatEntry6) { e.Expires-- })
}

// The next packet of the initiator restores the missing entry of the replies; if another flow uses the port now, the flow gets another port.
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
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, first)))
			forgetReplies(n, family, bpf.NatFromOutside)
			n.wantPacket(n.sendFrom(podA, kind(going(first, server))), actUnspec, kind(going(own, server)))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, first)))

			forgetReplies(n, family, bpf.NatFromOutside)
			n.wantPacket(n.sendFrom(podB, kind(going(second, server))), actUnspec, kind(going(own, server)))
			got := n.sendFrom(podA, kind(going(first, server)))
			port := sourcePort(family, got.packet)
			if port == 40000 {
				t.Fatalf("%s: two pods send from one port", name)
			}
			other := netip.AddrPortFrom(own.Addr(), port)
			n.wantPacket(got, actUnspec, kind(going(other, server)))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, kind(coming(server, other))), actUnspec, kind(coming(server, first)))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, kind(coming(server, own))), actUnspec, kind(coming(server, second)))
			n.wantNat(family, 4)
			clearNat(n, family)
		}
	})
}

// The same holds for flows to services: of a pod, whose replies are translated on their way into the pod, and of an outside client, whose replies are
// translated at the egress device.
func TestPrivilegedService_RestoresTheEntryOfReplies(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		ask, reply := serviceRequest(family, 5000).bytes(t), translatedRequest(family, podB, 5000).back(podB).bytes(t)
		answer := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withTTL(63).bytes(t)
		from, service, backend := on(client[family], 4000), on(balancer[family], 80), on(podA.addr(family), 8080)
		n.serve(1, service, loadbalancer.UDP, 0, backend)
		for range 2 {
			n.passes(podA, ask, actRedirect)
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, reply), actRedirect, answer)
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, service).bytes(t)), actUnspec, coming(from, backend).bytes(t))
			n.wantPacket(n.sendFrom(podA, going(backend, from).bytes(t)), actUnspec, going(service, from).bytes(t))
			n.wantNat(family, 4)
			forgetReplies(n, family, bpf.NatToPod)
			forgetReplies(n, family, bpf.NatToOutside)
			n.wantNat(family, 2)
		}
	})
}
