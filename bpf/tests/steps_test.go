package tests

import (
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

// Steps in pod_steps, as in enum pod_step.
const (
	stepRefuse = 3
	stepToNode = 4
	stepSlow   = 5
)

// A packet is dropped with a specific reason when its step is missing. New flows between pods need only the slow path.
func TestPrivilegedSteps_MissingStepsDrop(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for step := range uint32(stepSlow) {
			n.withoutStep(step)
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
			"the first datagram to a service":       serviceRequest(family, 5000).bytes(t),
			"another datagram of that missing flow": serviceRequest(family, 5000).bytes(t),
		} {
			from := podA
			if name == "an ICMP error" {
				from = podB
			}
			n.wantEgressDrop(from, packet, events.MissedStep)
			n.wantNat(family, 0)
		}
		// The step that rejects packets to a service without backends is missing too: the sender gets no error, and no packet passes.
		n.service(family, protoTCP, nil)
		n.wantEgressDrop(podA, serviceRequest(family, 5000).tcp(t, "S"), events.MissedStep)
	})
}

// Without the slow path, packets of established flows are forwarded, and all others are dropped.
func TestPrivilegedSteps_MissingSlowPath(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.withoutStep(stepSlow)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		n.wantEgressDrop(podA, open.tcp(t, "F"), events.MissedStep)
		n.wantEgressDrop(podA, open.ports(5001, 80).tcp(t, "S"), events.MissedStep)
		n.wantEgressDrop(podA, arp(t, podA.mac, broadcast, arpRequest, podA.mac, podA.ipv4, mac.Addr{}, gateway4), events.MissedStep)
	})
}

// withoutStep removes a step of pod_egress.
func (n *node) withoutStep(step uint32) {
	n.t.Helper()
	steps, _ := n.podMaps()
	if err := steps.Delete(step); err != nil {
		n.t.Fatal(err)
	}
}

// A packet that must be rejected is dropped without an error when the rejecting step is missing.
func TestPrivilegedSteps_MissingRejectStep(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoTCP, nil)
		if got := n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).tcp(t, "S")); got.action != actRedirect {
			t.Errorf("action %d, want a reset for the sender", int32(got.action))
		}
		n.withoutStep(stepRefuse)
		n.refill(podA.id)
		n.wantEgressDrop(podA, serviceRequest(family, 5001).tcp(t, "S"), events.NoBackend)
	})
}
