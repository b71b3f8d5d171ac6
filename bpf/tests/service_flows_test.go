package tests

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// Fragments of a datagram go to the backend of the first fragment, and fragments of the reply have the service's address.
func TestPrivilegedService_Fragments(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		ask, got := serviceRequest(family, 5000), translatedRequest(family, podB, 5000)
		n.wantEgressDrop(podA, ask.part(t, 1, 10, true), events.UnknownFragment)
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, ask.part(t, 1, 0, true)), actRedirect, got.part(t, 1, 0, true))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, ask.part(t, 1, 10, false)), actRedirect, got.part(t, 1, 10, false))
		n.wantEgressDrop(podA, ask.part(t, 2, 10, true), events.UnknownFragment)

		answer := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000).withTTL(63)
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, got.back(podB).part(t, 3, 0, true)), actRedirect, answer.part(t, 3, 0, true))
		n.wantPacket(n.run(bpf.PodEgress, ifPodB, got.back(podB).part(t, 3, 10, false)), actRedirect, answer.part(t, 3, 10, false))

		// The flow is deleted between the fragments.
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, ask.part(t, 4, 0, true)), actRedirect, got.part(t, 4, 0, true))
		n.natExpire(family)
		n.wantEgressDrop(podA, ask.part(t, 4, 10, false), events.UnknownFragment)
	})
}

// A datagram flow keeps its backend while either side sends; after it expires, the next flow selects a backend again.
func TestPrivilegedService_Expiry(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		ask := serviceRequest(family, 5000).bytes(t)
		n.passes(podA, ask, actRedirect)
		n.service(family, protoUDP, at(remotePod[family]))
		n.passes(podA, ask, actRedirect) // as before

		// One direction alone keeps it.
		n.natExpireSome(family, func(e natRest) bool { return e.reply })
		n.passes(podA, ask, actRedirect)
		n.passes(podB, translatedRequest(family, podB, 5000).back(podB).bytes(t), actRedirect)
		n.natExpireSome(family, func(e natRest) bool { return !e.reply })
		n.passes(podA, ask, actRedirect)

		n.natExpire(family)
		n.passes(podA, ask, actOK)
		n.wantNat(family, 2)
	})
}

// The end of a connection, whichever side closes it, ends its translation, and the same port starts another one.
func TestPrivilegedService_ConnectionEnds(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for name, end := range map[string]func(client, server func(string)){
			"closed":            func(client, server func(string)) { client("FA"); server("FA"); client("A") },
			"reset by the pod":  func(client, _ func(string)) { client("R") },
			"reset by the peer": func(_, server func(string)) { server("RA") },
		} {
			began := now(t)
			n.service(family, protoTCP, at(podB.addr(family)))
			ask, answer := serviceRequest(family, 5000), translatedRequest(family, podB, 5000).back(podB)
			client := func(flags string) { t.Helper(); n.passes(podA, ask.tcp(t, flags), actRedirect) }
			server := func(flags string) { t.Helper(); n.passes(podB, answer.tcp(t, flags), actRedirect) }
			client("S")
			n.wantNatTimeout(name+": a connection without a reply", family, began, lifeSYN)
			server("SA")
			client("A")
			server("A")
			n.wantNatTimeout(name+": an established connection", family, began, lifeTCP)
			n.service(family, protoTCP, at(remotePod[family]))
			client("A")
			end(client, server)
			if got := n.natLeft(family); got[0] > lifeClose || got[1] > lifeClose {
				t.Errorf("%s: a connection that ended has %v ticks", name, got)
			}
			n.passes(podA, ask.tcp(t, "S"), actOK) // another connection, to the current backend
			n.wantNat(family, 2)
			n.natExpire(family)
			clearMaps(t, n, family)
			n.passes(podA, serviceRequest(family, 1).tcp(t, "S"), actOK)
			clearNat(n, family)
			clearMaps(t, n, family)
		}
	})
}

// Two services with the same backend, and the backend itself: a client may use all of them from one port.
func TestPrivilegedService_OnePortForAll(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, n *node, family int, protocol uint8) {
		packet := kinds[protocol]
		direct := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, backendPort)
		n.passes(podA, packet(t, direct), actRedirect)
		n.service(family, protocol, at(podB.addr(family)))

		second := clusterIP[family].Next()
		n.service(family, protocol, at(podB.addr(family)), func(k *bpf.ServiceKey, s *bpf.Service) { k.Addr, s.Id, s.First = bpf.NewAddrKey(second), 8, 50 })

		ports := []uint16{5000}
		for _, addr := range []netip.Addr{clusterIP[family], second} {
			got := n.run(bpf.PodEgress, ifPodA, packet(t, sent(podA, podA.addr(family), addr).ports(5000, servicePort)))
			sport := binary.BigEndian.Uint16(got.packet[map[int]int{4: 34, 6: 54}[family]:])
			if slices.Contains(ports, sport) {
				t.Errorf("port %d serves two flows", sport)
			}
			ports = append(ports, sport)
			n.wantPacket(got, actRedirect, packet(t, translatedRequest(family, podB, sport)))
			answer := translatedRequest(family, podB, sport).back(podB)
			want := received(podA, addr, podA.addr(family)).ports(servicePort, 5000).withTTL(63)
			if protocol == protoTCP {
				n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.tcp(t, "SA")), actRedirect, want.tcp(t, "SA"))
			} else {
				n.wantPacket(n.run(bpf.PodEgress, ifPodB, answer.bytes(t)), actRedirect, want.bytes(t))
			}
		}
		n.wantNat(family, 4)
	})
}

// A full table drops new flows, keeps existing ones, and wakes the collector.
func TestPrivilegedService_FullTable(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0}, map[string]uint32{natMap(family): 64})
		n.service(family, protoUDP, at(podB.addr(family)))
		passed := 0
		for sport := range uint16(64) {
			if n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000+sport).bytes(t)).action == actRedirect {
				passed++
			}
		}
		if passed != 32 {
			t.Errorf("IPv%d: %d flows found room, want 32", family, passed)
		}
		if c := n.count(events.NATFull, bpf.DirectionEgress); c.Packets != 32 {
			t.Errorf("IPv%d: %d packets were counted as refused, want 32", family, c.Packets)
		}
		for n.event() != nil {
		}
		n.wantNat(family, 64)
		if s := n.signal(); s.Family != uint32(16+family) {
			t.Errorf("IPv%d: signal %+v", family, s)
		}
		n.passes(podA, serviceRequest(family, 5000).bytes(t), actRedirect)
		n.natExpire(family)
		n.passes(podA, serviceRequest(family, 5001).bytes(t), actRedirect)
	}
}

// Memory of the table that is reused for another flow is ignored.
func TestPrivilegedService_CheckMismatch(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family)))
		n.passes(podA, serviceRequest(family, 5000).bytes(t), actRedirect)
		if family == 4 {
			changeNat(n, bpf.MapNat4, func(_ bpf.NatKey4, e *bpf.NatEntry4) { e.Check += 2 })
		} else {
			changeNat(n, bpf.MapNat6, func(_ bpf.NatKey6, e *bpf.NatEntry6) { e.Check += 2 })
		}
		n.wantEgressDrop(podB, translatedRequest(family, podB, 5000).back(podB).bytes(t), events.NoMapping)
	})
}

// Many CPUs start the same flows at once: each flow has one backend for all its packets, and one pair of entries.
func TestPrivilegedService_ConcurrentStartOfSameFlow(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(podB.addr(family), remotePod[family]))
		const flows, workers = 200, 8
		var actions [workers][flows]uint32
		var wait sync.WaitGroup
		packets := make([][]byte, flows)
		for i := range packets {
			packets[i] = serviceRequest(family, 5000+uint16(i)).bytes(t)
		}
		for w := range workers {
			wait.Go(func() {
				n.ns.Do(func() {
					for i, p := range packets {
						action, err := n.program(bpf.PodEgress).Run(&ebpf.RunOptions{Data: p, DataOut: make([]byte, len(p)+256), Context: skBuff{Ifindex: ifPodA}})
						check(t, err)
						actions[w][i] = action
					}
				})
			})
		}
		wait.Wait()
		for i := range flows {
			for w := range workers {
				if actions[w][i] != actions[0][i] || actions[w][i] == actShot {
					t.Fatalf("flow %d went %d for one and %d for another", i, actions[w][i], actions[0][i])
				}
			}
		}
		n.wantNat(family, 2*flows)
	})
}

// For any packet of a pod to services: forwarded packets have the pod's source or are a reply to itself, and never have a service as their destination.
func TestPrivilegedService_MutatedPackets(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	random := testseed.New(t)
	var seeds [][]byte
	for _, family := range families {
		n.service(family, protoUDP, at(podB.addr(family), podA.addr(family), remotePod[family]))
		n.service(family, protoTCP, at(podB.addr(family), podA.addr(family)))
		ask := serviceRequest(family, 5000)
		from := received(podA, clusterIP[family], podA.addr(family)).ports(servicePort, 5000)
		seeds = append(seeds, ask.bytes(t), ask.tcp(t, "S"), ask.tcp(t, "A"), ask.part(t, 1, 0, true), ask.part(t, 1, 10, false),
			ask.quoting(t, from.bytes(t), 64), ask.quoting(t, from.tcp(t, "A"), 8),
			received(podA, loopback[family], podA.addr(family)).ports(5000, backendPort).back(podA).bytes(t))
	}
	passed := 0
	for range 30_000 {
		in := mutate(random, seeds[random.IntN(len(seeds))])
		got := n.run(bpf.PodEgress, ifPodA, in)
		if got.action == actShot {
			continue
		}
		passed++
		if fault := serviceFault(got); fault != "" {
			t.Fatalf("%s: action %d\n in %x\nout %x", fault, got.action, in, got.packet)
		}
	}
	if passed < 1000 {
		t.Errorf("only %d packets went on: the test sees too little", passed)
	}
}

// serviceFault describes the fault of a forwarded packet of pod a.
func serviceFault(got outcome) string {
	var source, target netip.Addr
	switch binary.BigEndian.Uint16(got.packet[offEtherType:]) {
	case 0x0800:
		source, target = netip.AddrFrom4([4]byte(got.packet[26:30])), netip.AddrFrom4([4]byte(got.packet[30:34]))
	case 0x86dd:
		source, target = netip.AddrFrom16([16]byte(got.packet[22:38])), netip.AddrFrom16([16]byte(got.packet[38:54]))
	default:
		return "of a protocol that is not translated"
	}
	switch own := source == podA.ipv4 || source == podA.ipv6; {
	case got.action == actOK && !own:
		return "passed up with another's source address"
	case got.action == actRedirect && (target == podA.ipv4 || target == podA.ipv6):
		return "" // a reply to itself
	case got.action == actRedirect && !own:
		return "delivered with another's source address"
	case got.action == actRedirect && !addressed(got.packet, podB, target):
		return "delivered to the wrong pod"
	}
	return ""
}
