package tests

import (
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// closedPods denies all ingress of both pods; pod a may send.
func closedPods(n *node) {
	n.closed(podA)
	n.facts(podB, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = policyID, n.policy(policyID, rule{}) })
}

// Echo requests have replies, and a request in the other direction is a separate flow, although it has the same identifier (GHSA-c66w-hq56-4q97).
func TestPrivilegedICMP_RequestInOtherDirection(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		closedPods(n)
		ask := sent(podA, podA.addr(family), podB.addr(family))
		back := ask.back(podB)

		// A reply without a request creates no flow, not even for a later request.
		n.wantEgressDrop(podB, back.echo(t, true, 7), events.UnknownFlow)
		n.wantFlows(family, 0, 0)

		n.passes(podA, ask.echo(t, false, 7), actRedirect)
		n.wantEgressDrop(podB, back.echo(t, false, 7), events.PolicyDenied)
		n.passes(podB, back.echo(t, true, 7), actRedirect)
		n.passes(podA, ask.echo(t, false, 7), actRedirect)
		n.wantFlows(family, 0, 1)
		n.wantEgressDrop(podB, back.echo(t, false, 7), events.PolicyDenied)
		n.wantEgressDrop(podB, back.echo(t, true, 8), events.UnknownFlow)
		n.wantEgressDrop(podA, ask.echo(t, true, 7), events.UnknownFlow)
		n.passes(podA, ask.echo(t, false, 7), actRedirect)
		n.passes(podB, back.echo(t, true, 7), actRedirect)
	})
}

// An ICMP error passes, whatever the policies, when its inner packet belongs to a flow and the error's sender is the destination of this packet.
func TestPrivilegedICMP_Errors(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		closedPods(n)
		ask := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 53)
		back := ask.back(podB)

		// The inner packet was not sent.
		n.wantEgressDrop(podB, back.unreachable(t, ask.bytes(t)), events.UnknownFlow)
		// The inner packet belongs to a flow without a reply.
		n.passes(podA, ask.bytes(t), actRedirect)
		n.passes(podB, back.unreachable(t, ask.bytes(t)), actRedirect)
		n.wantFlows(family, 1, 0)
		// The inner packet belongs to an established flow, in both directions.
		n.passes(podB, back.bytes(t), actRedirect)
		n.passes(podA, ask.bytes(t), actRedirect)
		n.passes(podB, back.unreachable(t, ask.bytes(t)), actRedirect)
		n.passes(podA, ask.unreachable(t, back.bytes(t)), actRedirect)
		n.wantFlows(family, 0, 1)
		// The inner packet has other ports, another protocol, or belongs to the error's own flow.
		n.wantEgressDrop(podB, back.unreachable(t, ask.ports(5000, 54).bytes(t)), events.UnknownFlow)
		n.wantEgressDrop(podB, back.unreachable(t, ask.tcp(t, "S")), events.UnknownFlow)
		n.wantEgressDrop(podB, back.unreachable(t, ask.unreachable(t, back.bytes(t))), events.UnknownFlow)
		// The receiver of the error did not send the inner packet.
		n.wantEgressDrop(podB, back.unreachable(t, back.bytes(t)), events.UnknownFlow)
		// An inner packet that ends before the ports.
		short := ask.bytes(t)
		n.wantEgressDrop(podB, back.unreachable(t, short[:14+10]), events.Truncated)
		// Of a flow whose cached verdict is no longer valid.
		n.facts(podA, func(*bpf.EndpointFacts) {})
		n.wantEgressDrop(podB, back.unreachable(t, ask.bytes(t)), events.UnknownFlow)
		n.passes(podA, ask.bytes(t), actRedirect)
		n.passes(podB, back.unreachable(t, ask.bytes(t)), actRedirect)
		// Of an expired flow.
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
		n.wantEgressDrop(podB, back.unreachable(t, ask.bytes(t)), events.UnknownFlow)
	})
}

// A pod that is not part of a flow cannot send errors about it; a router on the path of a pod's packet can.
func TestPrivilegedICMP_ErrorsFromThirdParties(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.closed(podA)
		peer, router := outside[family], outside[family].Next()
		ask := sent(podA, podA.addr(family), peer).ports(5000, 80)
		n.passes(podA, ask.tcp(t, "S"), actOK)
		n.wantEgressDrop(podB, sent(podB, podB.addr(family), podA.addr(family)).unreachable(t, ask.tcp(t, "S")), events.UnknownFlow)
		n.arrives(podA, ifUplink, received(podA, router, podA.addr(family)).unreachable(t, ask.tcp(t, "S")))
		// The node itself reports that the TTL of a packet expired.
		n.arrives(podA, 0, received(podA, gateways[family], podA.addr(family)).unreachable(t, ask.tcp(t, "S")))
		n.wantIngressDrop(podA, ifUplink, received(podA, router, podA.addr(family)).unreachable(t, ask.ports(5001, 80).tcp(t, "S")),
			events.UnknownFlow)
		n.wantIngressDrop(podA, ifUplink, received(podA, router, podA.addr(family)).icmp(t, map[int]uint8{4: 3, 6: 1}[family], 0, make([]byte, 8)),
			events.Truncated)
	})
}

// The inner packet of an error may be an echo request.
func TestPrivilegedICMP_ErrorsAboutEchoRequests(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		closedPods(n)
		ask := sent(podA, podA.addr(family), podB.addr(family))
		n.passes(podA, ask.echo(t, false, 7), actRedirect)
		n.passes(podB, ask.back(podB).unreachable(t, ask.echo(t, false, 7)), actRedirect)
		n.wantEgressDrop(podB, ask.back(podB).unreachable(t, ask.echo(t, false, 8)), events.UnknownFlow)
		n.wantEgressDrop(podB, ask.back(podB).unreachable(t, ask.echo(t, true, 7)), events.UnknownFlow)
	})
}
