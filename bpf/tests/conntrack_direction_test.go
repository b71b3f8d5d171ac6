package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// A reset that its receiver ignores, because the sequence number is outside of the window, shortens the timeout of a connection until the alleged sender of
// the reset sends again.
func TestPrivilegedConntrack_IgnoredReset(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		for name, c := range map[string]struct {
			from, other      pod
			packet, opposite flow
		}{
			"of the initiator": {podA, podB, open, back},
			"of the responder": {podB, podA, back, open},
		} {
			n.passes(c.from, c.packet.tcp(t, "R"), actRedirect)
			n.wantTimeout("est", family, lifeClose)
			n.passes(c.other, c.opposite.tcp(t, "A"), actRedirect) // sent before the reset came
			n.wantTimeout("est", family, lifeClose)
			n.passes(c.from, c.packet.tcp(t, "A"), actRedirect)
			n.wantTimeout("est", family, lifeTCP)
			if t.Failed() {
				t.Fatalf("reset %s", name)
			}
		}
	})
}

// The next segment of an expired connection does not reverse its direction: a client whose access was revoked meanwhile cannot continue because of a
// retransmission of its server.
func TestPrivilegedConntrack_ExpiredConnectionKeepsItsDirection(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open := sent(podA, podA.addr(family), podB.addr(family)).ports(4000, 80)
		back := open.back(podB)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		if f := n.onlyFlow("est", family); f.Initiator != podA.id || f.Responder != podB.id {
			t.Errorf("the initiator is endpoint %d and the responder %d, want %d and %d", f.Initiator, f.Responder, podA.id, podB.id)
		}

		n.closed(podB) // its ingress is denied now, its egress is allowed
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
		n.wantEgressDrop(podB, back.tcp(t, "A"), events.PolicyDenied)
		n.wantEgressDrop(podA, open.tcp(t, "A"), events.PolicyDenied)
	})
}

// The initiator of a connection whose entry was deleted is unknown: its segments are forwarded only when the policies allow both directions.
func TestPrivilegedConntrack_ConnectionWithoutAnEntry(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open := sent(podA, podA.addr(family), podB.addr(family)).ports(4000, 80)
		back := open.back(podB)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		clearMaps(t, n, family)
		n.closed(podB)
		n.wantEgressDrop(podB, back.tcp(t, "A"), events.PolicyDenied)
		n.wantEgressDrop(podA, open.tcp(t, "A"), events.PolicyDenied)
		n.wantEgressDrop(podA, open.tcp(t, "S"), events.PolicyDenied)
		n.passes(podB, sent(podB, podB.addr(family), podA.addr(family)).ports(4001, 80).tcp(t, "S"), actRedirect)
	})
}

// The same holds for connections with a peer outside or on another node, whose segments reach the pod through the stack.
func TestPrivilegedConntrack_ConnectionWithoutAnEntryToAnotherHost(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[family]), bpf.IpcacheEntry{Identity: identityDistant})
		for name, peer := range map[string]netip.Addr{"outside": outside[family], "on another node": distantPod[family]} {
			out, in := sent(podA, podA.addr(family), peer).ports(4000, 80), outsideTo(podA, peer, 80, 4000)
			n.passes(podA, out.tcp(t, "A"), actOK)
			clearMaps(t, n, family)
			n.arrives(podA, ifUplink, in.tcp(t, "A"))
			clearMaps(t, n, family)

			n.closed(podA)
			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "A"), events.PolicyDenied)
			n.wantEgressDrop(podA, out.tcp(t, "A"), events.PolicyDenied)
			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "S"), events.PolicyDenied)
			n.passes(podA, out.tcp(t, "S"), actOK)
			n.arrives(podA, ifUplink, in.tcp(t, "SA"))
			clearMaps(t, n, family)

			n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = bpf.PolicyAllowAll, 0 })
			n.egress(podA)
			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "A"), events.PolicyDenied)
			n.wantEgressDrop(podA, out.tcp(t, "A"), events.PolicyDenied)
			n.arrives(podA, ifUplink, in.tcp(t, "S"))
			clearMaps(t, n, family)
			n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyEgress, f.ShapeEgress = bpf.PolicyAllowAll, 0 })
			if t.Failed() {
				t.Fatal(name)
			}
		}
	})
}
