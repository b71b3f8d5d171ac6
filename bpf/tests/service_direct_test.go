package tests

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
)

// sourcePort returns the source port of a TCP or UDP packet without extension headers.
func sourcePort(family int, packet []byte) uint16 {
	return binary.BigEndian.Uint16(packet[map[int]int{4: 34, 6: 54}[family]:])
}

// A pod connects to a service, and then from the same port to the backend itself: the backend receives two flows, and each reply has the address to which the
// pod connected. TestPrivilegedService_OnePortForAll covers the reverse order.
func TestPrivilegedService_ThenTheBackendItself(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		first, later, answer := "S", "A", "SA"
		packet := func(f flow, flags string) []byte {
			if protocol == protoTCP {
				return f.tcp(t, flags)
			}
			return f.bytes(t)
		}
		n.service(family, protocol, at(podB.addr(family)))
		viaService := serviceRequest(family, 5000)
		direct := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, backendPort)
		fromService := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withTTL(63)
		fromBackend := received(podA, podB.addr(family), podA.addr(family)).ports(backendPort, 5000).withTTL(63)

		n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(viaService, first)), actRedirect, packet(translatedRequest(family, podB, 5000), first))
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, packet(translatedRequest(family, podB, 5000).back(podB), answer)), actRedirect, packet(fromService, answer))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(viaService, later)), actRedirect, packet(translatedRequest(family, podB, 5000), later))

		got := n.run(bpf.PodEgress, ifPodA, packet(direct, first))
		port := sourcePort(family, got.packet)
		if port == 5000 {
			t.Fatalf("the backend cannot tell both flows apart (action %d)", got.action)
		}
		n.wantPacket(got, actRedirect, packet(translatedRequest(family, podB, port), first))
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, packet(translatedRequest(family, podB, port).back(podB), answer)), actRedirect, packet(fromBackend, answer))
		for range 2 { // both continue
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(direct, later)), actRedirect, packet(translatedRequest(family, podB, port), later))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(viaService, later)), actRedirect, packet(translatedRequest(family, podB, 5000), later))
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, packet(translatedRequest(family, podB, port).back(podB), later)), actRedirect, packet(fromBackend, later))
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, packet(translatedRequest(family, podB, 5000).back(podB), later)), actRedirect, packet(fromService, later))
		}
		n.wantNat(family, 4)
		n.wantFlows(family, 0, 2)
		n.wantTranslations(podA.id, family, 2)
	})
}

// The same before the first reply, and for a backend on another node, whose replies pass through the stack.
func TestPrivilegedService_ThenTheRemoteBackendItself(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(remotePod[family]))
		n.passes(podA, packet(t, serviceRequest(family, 5000)), actOK)
		direct := sent(podA, podA.addr(family), remotePod[family]).ports(5000, backendPort)
		got := n.run(bpf.PodEgress, ifPodA, packet(t, direct))
		port := sourcePort(family, got.packet)
		if port == 5000 {
			t.Fatalf("the backend cannot tell both flows apart (action %d)", got.action)
		}
		n.wantPacket(got, actOK, packet(t, direct.ports(port, backendPort)))
		in := skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}
		for _, c := range [][2]flow{
			{outsideTo(podA, remotePod[family], backendPort, 5000), received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)},
			{outsideTo(podA, remotePod[family], backendPort, port), received(podA, remotePod[family], podA.addr(family)).ports(backendPort, 5000)},
		} {
			from, to := c[0], c[1]
			if protocol == protoTCP {
				n.wantPacket(n.runSkb(bpf.PodIngress, in, from.tcp(t, "SA")), actOK, to.tcp(t, "SA"))
			} else {
				n.wantPacket(n.runSkb(bpf.PodIngress, in, from.bytes(t)), actOK, to.bytes(t))
			}
		}
	})
}

// After the service's flow has expired, its port is usable like any other.
func TestPrivilegedService_DirectFlowAfterAnother(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		n.passes(podA, serviceRequest(family, 5000).bytes(t), actRedirect)
		clearNat(n, family)
		clearMaps(t, n, family)
		direct := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, backendPort)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, direct.bytes(t)), actRedirect, translatedRequest(family, podB, 5000).bytes(t))
		n.wantNat(family, 0)

		// The service's flow is deleted while conntrack still has its entry.
		answer := translatedRequest(family, podB, 5003).back(podB)
		n.passes(podA, serviceRequest(family, 5003).bytes(t), actRedirect)
		n.passes(podB, answer.bytes(t), actRedirect)
		clearNat(n, family)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, direct.ports(5003, backendPort).bytes(t)), actRedirect, translatedRequest(family, podB, 5003).bytes(t))
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.bytes(t)), actRedirect,
			received(podA, podB.addr(family), podA.addr(family)).ports(backendPort, 5003).withTTL(63).bytes(t))

		// A request that the service's backend initiates is no such flow.
		n.passes(podA, serviceRequest(family, 5001).bytes(t), actRedirect)
		back := sent(podB, podB.addr(family), podA.addr(family)).ports(5002, 9)
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, back.bytes(t)), actRedirect,
			received(podA, podB.addr(family), podA.addr(family)).ports(5002, 9).withTTL(63).bytes(t))
	})
}

// SCTP packets cannot change their port, so the second flow is dropped, and the first continues.
func TestPrivilegedService_ThenTheBackendItselfBySCTP(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoSCTP, []netip.AddrPort{on(podB.addr(family), servicePort)})
		direct := sent(podA, podA.addr(family), podB.addr(family))
		n.passes(podA, serviceRequest(family, 5000).sctp(t), actRedirect)
		n.wantEgressDrop(podA, direct.ports(5000, servicePort).sctp(t), events.NoMapping)
		n.passes(podA, serviceRequest(family, 5000).sctp(t), actRedirect)

		n.passes(podA, direct.ports(5001, servicePort).sctp(t), actRedirect)
		n.wantEgressDrop(podA, serviceRequest(family, 5001).sctp(t), events.NoMapping)
		n.passes(podA, direct.ports(5001, servicePort).sctp(t), actRedirect)
	})
}

// A packet to a service is longer than the path to the backend carries: the ICMP error contains the addresses and ports of the packet that the pod sent,
// because the kernel of the pod ignores any other. An error about a packet past the service contains the address of the backend.
func TestPrivilegedService_TooLongForBackend(t *testing.T) {
	t.Parallel()
	onDirect(t, func(t *testing.T, s *surroundings, family int, _ mac.Addr) {
		pod, distant := podA.addr(family), distantPod[family]
		for i, c := range []struct {
			name     string
			protocol uint8
			gso      uint32
			used     bool // the pod has a flow to the backend from the same port, so the flow to the service gets another
		}{
			{"UDP", protoUDP, 0, false},
			{"UDP from a used port", protoUDP, 0, true},
			{"TCP", protoTCP, 0, false},
			{"TCP from a used port", protoTCP, 0, true},
			{"TCP segments", protoTCP, 1480, false},
			{"SCTP", protoSCTP, 0, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				n, sport, backend := s.in(t), 5000+uint16(i), on(distant, backendPort)
				if c.protocol == protoSCTP {
					backend = on(distant, servicePort)
				}
				n.service(family, c.protocol, []netip.AddrPort{backend})
				ask := serviceRequest(family, sport)
				if c.used {
					n.passes(podA, unpadded(kinds[c.protocol](t, sent(podA, pod, distant).ports(sport, backendPort))), actRedirect)
				}
				if c.used || c.protocol == protoTCP {
					got := n.run(bpf.PodEgress, ifPodA, unpadded(kinds[c.protocol](t, ask)))
					n.did(got, actRedirect)
					if port := sourcePort(family, got.packet); (port != sport) != c.used {
						t.Fatalf("the source port is %d, before the translation %d", port, sport)
					}
				}
				n.wantTooBig(family, c.gso, ask.long(t, c.protocol), clusterIP[family])
			})
		}
		t.Run("past the service", func(t *testing.T) {
			n := s.in(t)
			n.service(family, protoUDP, at(distant))
			n.wantTooBig(family, 0, sent(podA, pod, distant).ports(5100, backendPort).long(t, protoUDP), distant)
		})
	})
}

// wantTooBig sends a packet of pod a, and checks that the pod gets an ICMP error about the same packet from an address.
func (n *node) wantTooBig(family int, gso uint32, frame []byte, from netip.Addr) {
	n.t.Helper()
	got := n.runSkb(bpf.PodEgress, skBuff{Ifindex: ifPodA, GsoSize: gso, GsoSegs: 2}, frame)
	if event := n.event(); event == nil || event.Reason != events.TooBig {
		n.t.Fatalf("action %d, event %+v", int32(got.action), event)
	}
	n.wantPacket(got, actRedirect, tooBig(n.t, received(podA, from, podA.addr(family)), frame, 1500))
}
