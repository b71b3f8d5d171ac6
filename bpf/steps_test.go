package bpf

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

// What a step decides is dropped when the step is missing, with a reason of its own. Packets of established flows and new flows between pods need none.
func TestPrivilegedSteps_MissingStepsDrop(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for step := range n.steps.MaxEntries() {
			if err := n.steps.Delete(step); err != nil {
				t.Fatal(err)
			}
		}
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)

		n.service(family, protoUDP, at(podB.addr(family)))
		ask := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 53)
		for name, packet := range map[string][]byte{
			"ARP":                                   arp(t, podA.mac, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, gateway4),
			"an ICMP error":                         ask.back(podB).unreachable(t, ask.bytes(t)),
			"the first datagram to a service":       askService(family, 5000).bytes(t),
			"another datagram of that missing flow": askService(family, 5000).bytes(t),
		} {
			from := podA
			if name == "an ICMP error" {
				from = podB
			}
			n.refused(from, packet, events.MissedStep)
			n.wantNat(family, 0)
		}
		// Nothing answers for a service without backends either: the sender waits, and nothing passes.
		n.service(family, protoTCP, nil)
		n.refused(podA, askService(family, 5000).tcp(t, "S"), events.MissedStep)
	})
}

// A packet that is dropped aloud is dropped without an answer when the step that answers is missing.
func TestPrivilegedSteps_MissingAnswer(t *testing.T) {
	t.Parallel()
	const refuse = 3 // POD_STEP_REFUSE
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoTCP, nil)
		if got := n.run(PodEgress, ifPodA, askService(family, 5000).tcp(t, "S")); got.action != actRedirect {
			t.Errorf("action %d, want a reset for the sender", int32(got.action))
		}
		if err := n.steps.Delete(uint32(refuse)); err != nil {
			t.Fatal(err)
		}
		n.refill(podA.id)
		n.refused(podA, askService(family, 5001).tcp(t, "S"), events.NoBackend)
	})
}
