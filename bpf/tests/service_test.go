package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// A client, a service and a backend on the same node: the client's packet arrives at the backend's port with the client's address, and the reply has the
// service's address.
func TestPrivilegedService_BackendOnTheNode(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(podB.addr(family)))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(t, serviceRequest(family, 5000))), actRedirect, packet(t, translatedRequest(family, podB, 5000)))
		n.wantNat(family, 2)
		n.wantFlows(family, 1, 0)

		answer := translatedRequest(family, podB, 5000).back(podB)
		toClient := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withTTL(63)
		if protocol == protoTCP {
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.tcp(t, "SA")), actRedirect, toClient.tcp(t, "SA"))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).tcp(t, "A")), actRedirect, translatedRequest(family, podB, 5000).tcp(t, "A"))
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.tcp(t, "A")), actRedirect, toClient.tcp(t, "A"))
		} else {
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.bytes(t)), actRedirect, toClient.bytes(t))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).bytes(t)), actRedirect, translatedRequest(family, podB, 5000).bytes(t))
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.bytes(t)), actRedirect, toClient.bytes(t))
		}
		n.wantFlows(family, 0, 1)
		n.wantNat(family, 2)
		if f := n.onlyFlow("est", family); f.Flags&bpf.CtTranslated == 0 {
			t.Errorf("the flow is not marked as translated: %+v", f)
		}
	})
}

// The backend is on another node: the client's packets leave through the stack, and replies are translated on their way into the pod.
func TestPrivilegedService_BackendOnOtherNode(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(remotePod[family]))
		on := sent(podA, podA.addr(family), remotePod[family]).ports(5000, backendPort)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(t, serviceRequest(family, 5000))), actOK, packet(t, on))

		answer := outsideTo(podA, remotePod[family], backendPort, 5000)
		want := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		in := skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}
		if protocol == protoTCP {
			n.wantPacket(n.runSkb(bpf.PodIngress, in, answer.tcp(t, "SA")), actOK, want.tcp(t, "SA"))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).tcp(t, "A")), actOK, on.tcp(t, "A"))
			n.wantPacket(n.runSkb(bpf.PodIngress, in, answer.tcp(t, "A")), actOK, want.tcp(t, "A"))
		} else {
			n.wantPacket(n.runSkb(bpf.PodIngress, in, answer.bytes(t)), actOK, want.bytes(t))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).bytes(t)), actOK, on.bytes(t))
			n.wantPacket(n.runSkb(bpf.PodIngress, in, answer.bytes(t)), actOK, want.bytes(t))
		}
		n.wantFlows(family, 0, 1)
	})
}

// A datagram without checksum stays without one.
func TestPrivilegedService_DatagramWithoutChecksum(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, udpSum(family, serviceRequest(family, 5000).bytes(t), 0)), actRedirect,
			udpSum(family, translatedRequest(family, podB, 5000).bytes(t), 0))
	})
}

// The pod is its own backend: it receives its packets from the loopback address of services.
func TestPrivilegedService_BackendIsTheClient(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.closed(podA)
		n.service(family, protocol, at(podA.addr(family)))
		to := received(podA, loopback[family], podA.addr(family)).ports(5000, backendPort)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, packet(t, serviceRequest(family, 5000))), actRedirect, packet(t, to))
		n.wantFlows(family, 0, 0)
		n.wantNat(family, 2)

		want := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		if protocol == protoTCP {
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, to.back(podA).tcp(t, "SA")), actRedirect, want.tcp(t, "SA"))
		} else {
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, to.back(podA).bytes(t)), actRedirect, want.bytes(t))
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, to.back(podA).quoting(t, to.bytes(t), 8)), actRedirect,
				want.quoting(t, serviceRequest(family, 5000).bytes(t), 8))
		}

		// Its reply in a deleted flow does not leave the pod with any address.
		clearNat(n, family)
		got := n.run(bpf.PodEgress, ifPodA, to.back(podA).tcp(t, "A"))
		if event := n.event(); event == nil || event.Reason != events.NoMapping {
			t.Errorf("event %+v", event)
		}
		n.wantPacket(got, actRedirect, segment(t, to.withTTL(64), "R", 0, 0, 0))
	})
}

// Policies match the backend, never the service.
func TestPrivilegedService_PolicyMatchesBackend(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		n.service(family, protocol, at(podB.addr(family)))
		n.egress(podA, rule{kind: bpf.PolicyIdentity, identity: podB.facts().Identity, level: bpf.PolicyPort, protocol: protocol, first: backendPort})
		n.passes(podA, packet(t, serviceRequest(family, 5000)), actRedirect)
		n.wantNat(family, 2)

		n.egress(podA, rule{kind: bpf.PolicyIdentity, identity: podB.facts().Identity, level: bpf.PolicyPort, protocol: protocol, first: servicePort})
		n.wantEgressDrop(podA, packet(t, serviceRequest(family, 5001)), events.PolicyDenied)
		n.wantNat(family, 2) // a denied packet creates no entry

		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyEgress, f.ShapeEgress = 1, 0 })
		n.ingress(podB)
		n.wantEgressDrop(podA, packet(t, serviceRequest(family, 5002)), events.PolicyDenied)
		n.wantNat(family, 2)
	})
}

// A service without backends: the client gets an immediate error from the service, and the packet is counted.
func TestPrivilegedService_NoBackend_IsRejected(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		back := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		n.service(family, protoTCP, nil)
		before := n.count(events.NoBackend, bpf.DirectionEgress)
		got := n.run(bpf.PodEgress, ifPodA, segment(t, serviceRequest(family, 5000), "S", 1000, 0, 0))
		if event := n.event(); event == nil || event.Reason != events.NoBackend {
			t.Errorf("event %+v", event)
		}
		n.wantPacket(got, actRedirect, segment(t, back, "RA", 0, 1001, 0))
		if after := n.count(events.NoBackend, bpf.DirectionEgress); after.Packets != before.Packets+1 {
			t.Errorf("counted %+v after %+v", after, before)
		}

		n.service(family, protoUDP, nil)
		ask := serviceRequest(family, 5000).bytes(t)
		got = n.run(bpf.PodEgress, ifPodA, ask)
		n.event()
		n.wantPacket(got, actRedirect, icmpError(t, back, ask))
		long := serviceRequest(family, 5000)
		long.payload = make([]byte, 1200)
		got = n.run(bpf.PodEgress, ifPodA, long.bytes(t))
		n.event()
		n.wantPacket(got, actRedirect, icmpError(t, back, long.bytes(t)))
		long.payload = []byte{}
		got = n.run(bpf.PodEgress, ifPodA, long.bytes(t))
		n.event()
		n.wantPacket(got, actRedirect, icmpError(t, back, long.bytes(t)))

		n.service(family, protoUDP, nil, func(_ *bpf.ServiceKey, s *bpf.Service) { s.Flags = bpf.ServiceDrop })
		n.wantEgressDrop(podA, ask, events.NoBackend)
		n.wantNat(family, 0)
	})
}

// A connection whose backend no longer exists is reset, so that its client opens another one.
func TestPrivilegedService_StaleConnection_IsReset(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoTCP, at(podB.addr(family)))
		got := n.run(bpf.PodEgress, ifPodA, segment(t, serviceRequest(family, 5000), "A", 1000, 777, 0))
		n.event()
		n.wantPacket(got, actRedirect, segment(t, received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000), "R", 777, 0, 0))
		n.wantEgressDrop(podA, serviceRequest(family, 5000).tcp(t, "R"), events.NoMapping)
		n.wantEgressDrop(podA, serviceRequest(family, 5000).tcp(t, "RA"), events.NoMapping)
		n.wantNat(family, 0)

		// A connection that was established before the address belonged to a service continues.
		direct := sent(podA, podA.addr(family), podB.addr(family)).ports(6000, 443)
		n.passes(podA, direct.tcp(t, "S"), actRedirect)
		n.passes(podB, direct.back(podB).tcp(t, "SA"), actRedirect)
		n.passes(podA, direct.tcp(t, "A"), actRedirect)
		n.update(bpf.MapServices, bpf.NewServiceKey(frontend(podB.addr(family), 443, protoTCP), bpf.ScopeExternal), bpf.Service{Id: 10})
		n.passes(podA, direct.tcp(t, "FA"), actRedirect)
	})
}

// Clients of the cluster use the backends of the internal scope; their location does not matter.
func TestPrivilegedService_Scopes(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, nil, func(_ *bpf.ServiceKey, s *bpf.Service) { s.Flags = bpf.ServiceTwoScopes | bpf.ServiceDrop })
		n.service(family, protoUDP, at(podB.addr(family)), func(k *bpf.ServiceKey, s *bpf.Service) {
			k.Scope, s.Id, s.Flags = bpf.ScopeInternal, 8, bpf.ServiceOutside|bpf.ServiceRanges
		})
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).bytes(t)), actRedirect, translatedRequest(family, podB, 5000).bytes(t))

		// A service of processes of the node with a loopback address is no service for pods.
		n.service(family, protoUDP, nil, func(_ *bpf.ServiceKey, s *bpf.Service) { s.Flags = bpf.ServiceLoopback })
		n.passes(podA, serviceRequest(family, 5001).bytes(t), actOK)
	})
}

// The programs cannot update the checksum of SCTP: with the port of the service a packet is forwarded, with another port it cannot be.
func TestPrivilegedService_SCTP(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		same := netip.AddrPortFrom(podB.addr(family), servicePort)
		n.service(family, protoSCTP, []netip.AddrPort{same})
		want := received(podB, podA.addr(family), podB.addr(family)).ports(5000, servicePort).withTTL(63)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).sctp(t)), actRedirect, want.sctp(t))
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, want.back(podB).sctp(t)), actRedirect,
			received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withTTL(63).sctp(t))

		n.service(family, protoSCTP, at(podB.addr(family)))
		n.wantEgressDrop(podA, serviceRequest(family, 5001).sctp(t), events.ServiceProtocol)
		n.wantNat(family, 2)
	})
}

// A client keeps its backend as long as the backend belongs to the service and the timeout has not expired.
func TestPrivilegedService_Affinity(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		keeps := func(_ *bpf.ServiceKey, s *bpf.Service) { s.Flags, s.Affinity = bpf.ServiceAffinity, 600 }
		n.service(family, protoUDP, at(podB.addr(family), remotePod[family]), keeps)
		first := n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).bytes(t)).action
		for sport := range uint16(30) {
			if got := n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5001+sport).bytes(t)).action; got != first {
				t.Fatalf("connection %d went to another backend", sport)
			}
		}
		key := bpf.AffinityKey{Service: serviceID, Kind: uint32(family), Client: bpf.NewAddrKey(podA.addr(family)).Addr}
		var kept bpf.AffinityEntry
		if err := n.maps[bpf.MapAffinity].Lookup(key, &kept); err != nil {
			t.Fatal(err)
		}

		// The backend no longer belongs to the service, but still exists for its connections.
		if err := n.maps[bpf.MapAffinityMembers].Delete(bpf.AffinityMember{Service: serviceID, Backend: kept.Backend}); err != nil {
			t.Fatal(err)
		}
		other := 201 - kept.Backend
		n.update(bpf.MapServiceSlots, uint32(40), other)
		n.update(bpf.MapServiceSlots, uint32(41), other)
		if got := n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 6000).bytes(t)).action; got == first {
			t.Error("the client still meets a backend that left the service")
		}

		// The timeout expires.
		n.update(bpf.MapAffinityMembers, bpf.AffinityMember{Service: serviceID, Backend: kept.Backend}, uint32(1))
		kept.Used = now(t) - 600
		n.update(bpf.MapAffinity, key, kept)
		if got := n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 6001).bytes(t)).action; got == first {
			t.Error("the client still reaches its previous backend after the timeout")
		}
	})
}

// Backends are chosen at random, also while one of them is being removed.
func TestPrivilegedService_RemovedBackend(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family), remotePod[family]))
		seen := map[uint32]int{}
		for sport := range uint16(64) {
			seen[n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000+sport).bytes(t)).action]++
		}
		if seen[actOK] == 0 || seen[actRedirect] == 0 || len(seen) != 2 {
			t.Errorf("64 flows went %v", seen)
		}
		// A slot without backend: the next one is used.
		if err := n.maps[bpf.MapBackends].Delete(uint32(101)); err != nil {
			t.Fatal(err)
		}
		for sport := range uint16(64) {
			n.passes(podA, serviceRequest(family, 7000+sport).bytes(t), actRedirect)
		}
	})
}

// ICMP errors are translated like their inner packet: errors of the client about replies, of the backend about requests, and errors of routers.
func TestPrivilegedService_ICMPErrors(t *testing.T) {
	t.Parallel()
	for _, quote := range []int{8, 64} {
		eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
			packet := kinds[protocol]
			n.service(family, protocol, at(podB.addr(family)))
			ask, got := serviceRequest(family, 5000), translatedRequest(family, podB, 5000)
			n.passes(podA, packet(t, ask), actRedirect)
			answer := got.back(podB)
			toClient := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
			n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.withTTL(64).quoting(t, packet(t, got), quote)), actRedirect,
				toClient.withTTL(63).quoting(t, packet(t, ask.withTTL(63)), quote))
			reply := answer.bytes(t)
			if protocol == protoTCP {
				reply = answer.tcp(t, "SA")
			}
			n.passes(podB, reply, actRedirect)
			toServer := received(podB, podA.addr(family), podB.addr(family)).ports(5000, backendPort)
			about := toClient
			if protocol == protoTCP {
				reply = about.tcp(t, "SA")
			} else {
				reply = about.bytes(t)
			}
			inner := answer.bytes(t)
			if protocol == protoTCP {
				inner = answer.tcp(t, "SA")
			}
			n.wantPacket(n.run(bpf.PodEgress, ifPodA, ask.quoting(t, reply, quote)), actRedirect,
				toServer.withTTL(63).quoting(t, inner, quote))
			n.wantNat(family, 2)
		})
	}
}
