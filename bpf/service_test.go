package bpf

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/events"
)

// A client, a service and a backend on the same node: the client's packet arrives at the backend's port with the client's address, and
// the answer comes from the service.
func TestPrivilegedService_BackendOnTheNode(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(podB.addr(family)))
		n.wantPacket(n.run(PodEgress, ifPodA, packet(t, askService(family, 5000))), actRedirect, packet(t, asked(family, podB, 5000)))
		n.wantNat(family, 2)
		n.wantFlows(family, 1, 0)

		answer := asked(family, podB, 5000).back(podB)
		toClient := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withHops(63)
		if protocol == protoTCP {
			n.wantPacket(n.run(PodEgress, ifPodB, answer.tcp(t, "SA")), actRedirect, toClient.tcp(t, "SA"))
			n.wantPacket(n.run(PodEgress, ifPodA, askService(family, 5000).tcp(t, "A")), actRedirect, asked(family, podB, 5000).tcp(t, "A"))
			n.wantPacket(n.run(PodEgress, ifPodB, answer.tcp(t, "A")), actRedirect, toClient.tcp(t, "A"))
		} else {
			n.wantPacket(n.run(PodEgress, ifPodB, answer.bytes(t)), actRedirect, toClient.bytes(t))
		}
		n.wantFlows(family, 0, 1)
		n.wantNat(family, 2)
		if f := n.onlyFlow("est", family); f.Flags&podEgressCtFlagCT_TRANSLATED == 0 {
			t.Errorf("the flow is not marked as translated: %+v", f)
		}
	})
}

// The backend is on another node: what the client sends leaves by the stack, and what comes back is translated where it reaches the pod.
func TestPrivilegedService_BackendElsewhere(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(remotePod[family]))
		on := sent(podA, podA.addr(family), remotePod[family]).ports(5000, backendPort)
		n.wantPacket(n.run(PodEgress, ifPodA, packet(t, askService(family, 5000))), actOK, packet(t, on))

		answer := outsideTo(podA, remotePod[family], backendPort, 5000)
		want := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		in := skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}
		if protocol == protoTCP {
			n.wantPacket(n.runSkb(PodIngress, in, answer.tcp(t, "SA")), actOK, want.tcp(t, "SA"))
			n.wantPacket(n.run(PodEgress, ifPodA, askService(family, 5000).tcp(t, "A")), actOK, on.tcp(t, "A"))
			n.wantPacket(n.runSkb(PodIngress, in, answer.tcp(t, "A")), actOK, want.tcp(t, "A"))
		} else {
			n.wantPacket(n.runSkb(PodIngress, in, answer.bytes(t)), actOK, want.bytes(t))
		}
		n.wantFlows(family, 0, 1)
	})
}

// A datagram without checksum has none afterwards.
func TestPrivilegedService_DatagramWithoutChecksum(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		n.wantPacket(n.run(PodEgress, ifPodA, udpSum(family, askService(family, 5000).bytes(t), 0)), actRedirect,
			udpSum(family, asked(family, podB, 5000).bytes(t), 0))
	})
}

// The pod is its own backend: it meets itself under the loopback address of services.
func TestPrivilegedService_BackendIsTheClient(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.closed(podA)
		n.service(family, protocol, at(podA.addr(family)))
		to := received(podA, loopback[family], podA.addr(family)).ports(5000, backendPort)
		n.wantPacket(n.run(PodEgress, ifPodA, packet(t, askService(family, 5000))), actRedirect, packet(t, to))
		n.wantFlows(family, 0, 0)
		n.wantNat(family, 2)

		want := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		if protocol == protoTCP {
			n.wantPacket(n.run(PodEgress, ifPodA, to.back(podA).tcp(t, "SA")), actRedirect, want.tcp(t, "SA"))
		} else {
			n.wantPacket(n.run(PodEgress, ifPodA, to.back(podA).bytes(t)), actRedirect, want.bytes(t))
			n.wantPacket(n.run(PodEgress, ifPodA, to.back(podA).quoting(t, to.bytes(t), 8)), actRedirect,
				want.quoting(t, askService(family, 5000).bytes(t), 8))
		}
	})
}

// Policies see the backend, never the service.
func TestPrivilegedService_PolicyJudgesTheBackend(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(podB.addr(family)))
		n.egress(podA, rule{kind: PolicyIdentity, identity: podB.facts().Identity, level: PolicyPort, protocol: protocol, first: backendPort})
		n.passes(podA, packet(t, askService(family, 5000)), actRedirect)
		n.wantNat(family, 2)

		n.egress(podA, rule{kind: PolicyIdentity, identity: podB.facts().Identity, level: PolicyPort, protocol: protocol, first: servicePort})
		n.refused(podA, packet(t, askService(family, 5001)), events.PolicyDenied)
		n.wantNat(family, 2) // what was refused leaves nothing

		n.facts(podA, func(f *EndpointFacts) { f.PolicyEgress, f.ShapeEgress = 1, 0 })
		n.ingress(podB)
		n.refused(podA, packet(t, askService(family, 5002)), events.PolicyDenied)
		n.wantNat(family, 2)
	})
}
