package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

const natShare = 8 // of one endpoint, in the tests below

// withShares runs a test for each family on a node whose endpoints have a small quota of translated flows.
func withShares(t *testing.T, test func(t *testing.T, n *node, family int)) {
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableNatShares: natShare}, nil)
			n.surround()
			test(t, n, family)
		})
	}
}

// wantTranslations checks the number of translated flows of an endpoint; id 0 counts flows without an endpoint.
func (n *node) wantTranslations(id uint16, family int, want int32) {
	n.t.Helper()
	n.wantCount(bpf.MapNatFlows, uint32(id), family, want)
}

// wantCount checks the number of translated flows in a slot of a map, and that the number of the other family is zero.
func (n *node) wantCount(name string, slot uint32, family int, want int32) {
	n.t.Helper()
	var count bpf.NatCount
	if err := n.maps[name].Lookup(slot, &count); err != nil {
		n.t.Fatal(err)
	}
	if got := map[int]int32{4: count.Ipv4, 6: count.Ipv6}[family]; got != want {
		n.t.Errorf("%d translated flows count in slot %d of %s, want %d", got, slot, name, want)
	}
	if other := map[int]int32{4: count.Ipv6, 6: count.Ipv4}[family]; other != 0 {
		n.t.Errorf("%d flows of the other family count in slot %d of %s", other, slot, name)
	}
}

// A pod that connects to services from as many ports as possible gets its quota and no more; its existing flows continue, and other pods get their quotas.
func TestPrivilegedNatShare_ClientsOfServices(t *testing.T) {
	t.Parallel()
	withShares(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(remotePod[family]))
		ask := func(i int) []byte { return serviceRequest(family, 5000+uint16(i)).bytes(t) }
		for i := range natShare {
			n.passes(podA, ask(i), actOK)
		}
		for range natShare / 4 { // from three quarters on, for each sixteenth of the quota, or each flow if that is less
			if s := n.signal(); s != (bpf.CtSignal{Family: bpf.NatWakeSignal + uint32(family), Endpoint: uint32(podA.id)}) {
				t.Errorf("before anybody was refused: signal %+v", s)
			}
		}
		for i := range 3 {
			n.wantEgressDrop(podA, ask(natShare+i), events.NATShare)
		}
		n.wantNat(family, 2*natShare)
		n.wantTranslations(podA.id, family, natShare)
		if s := n.signal(); s != (bpf.CtSignal{Family: bpf.NatShareSignal + uint32(family), Endpoint: uint32(podA.id)}) {
			t.Errorf("signal %+v", s)
		}
		n.passes(podA, ask(0), actOK)
		for i := range natShare {
			n.passes(podB, sent(podB, podB.addr(family), clusterIP[family]).ports(5000+uint16(i), servicePort).bytes(t), actOK)
		}

		// A flow that expired and starts again counts once, and so does a flow that many packets start.
		n.natExpire(family)
		n.passes(podA, ask(0), actOK)
		n.passes(podA, ask(0), actOK)
		n.wantTranslations(podA.id, family, natShare)
	})
}

// A flow that a policy denies does not count.
func TestPrivilegedNatShare_DeniedFlowsDoNotCount(t *testing.T) {
	t.Parallel()
	withShares(t, func(t *testing.T, n *node, family int) {
		n.service(family, protoUDP, at(remotePod[family]))
		closed := podA
		closed.pOut = 0
		n.put(closed)
		for i := range uint16(2 * natShare) {
			n.wantEgressDrop(podA, serviceRequest(family, 5000+i).bytes(t), events.PolicyDenied)
		}
		n.wantNat(family, 0)
		n.wantTranslations(podA.id, family, 0)
	})
}

// The quotas of masqueraded flows: of a pod, of another pod, and of the node, whose ICMP requests beyond its quota pass without entries.
func TestPrivilegedNatShare_Masquerade(t *testing.T) {
	t.Parallel()
	withShares(t, func(t *testing.T, n *node, family int) {
		leave := func(p pod, i int) []byte {
			return going(on(p.addr(family), 40000+uint16(i)), on(client[family], 53)).bytes(t)
		}
		for i := range natShare {
			n.did(n.sendFrom(podA, leave(podA, i)), actUnspec)
		}
		n.wantDropReason(n.sendFrom(podA, leave(podA, natShare)), events.NATShare)
		n.did(n.sendFrom(podB, leave(podB, natShare)), actUnspec)
		const nodes = 3 * natShare
		for i := range uint16(2 * nodes) {
			ping := going(on(nodeOut[family], 0), on(client[family], 0)).echo(t, false, 50000+i)
			n.did(n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUplink}, ping), actUnspec)
		}
		n.wantNat(family, 2*(natShare+1+nodes))
		n.wantTranslations(podA.id, family, natShare)
		n.wantTranslations(podB.id, family, 1)
		n.wantTranslations(0, family, 0)
		n.wantCount(bpf.MapNatTotals, bpf.NatOfNode, family, nodes)
	})
}

// If an endpoint's number of flows stays above three quarters of its quota between two passes, the agent is still woken before the next drop.
func TestPrivilegedNatShare_WakesBeyondThreeQuarters(t *testing.T) {
	t.Parallel()
	const share = 64
	for _, family := range families {
		n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableNatShares: share}, nil)
		n.surround()
		n.service(family, protoUDP, at(remotePod[family]))
		for i, after := range []int32{share*3/4 + 1, share*3/4 + 6} {
			count := bpf.NatCount{Ipv4: after, Ipv6: after}
			n.update(bpf.MapNatFlows, uint32(podA.id), count)
			for j := range uint16(share/16 + 1) {
				n.passes(podA, serviceRequest(family, 5000+uint16(i)*100+j).bytes(t), actOK)
			}
			if s := n.signal(); s != (bpf.CtSignal{Family: bpf.NatWakeSignal + uint32(family), Endpoint: uint32(podA.id)}) {
				t.Errorf("IPv%d, %d flows: signal %+v", family, after, s)
			}
		}
	}
}

// The expired flow of a pod from a port is replaced by the flow of an outside client to this port: it counts once.
func TestPrivilegedNatShare_ClientReplacesExpiredFlow(t *testing.T) {
	t.Parallel()
	withShares(t, func(t *testing.T, n *node, family int) {
		server, from := on(podA.addr(family), 8080), on(client[family], 4000)
		n.serve(1, on(balancer[family], 80), loadbalancer.UDP, 0, server)
		n.did(n.sendFrom(podA, going(server, from).bytes(t)), actUnspec)
		n.wantTranslations(podA.id, family, 1)
		n.natExpire(family)
		n.did(n.run(bpf.NetdevIngress, ifUplink, coming(from, on(balancer[family], 80)).bytes(t)), actUnspec)
		n.wantNat(family, 2)
		n.wantTranslations(podA.id, family, 1)
	})
}

// Flows of outside clients count for the responding pod; if the backend is on another node, all of them together leave entries for other flows.
func TestPrivilegedNatShare_ClientsFromOutside(t *testing.T) {
	t.Parallel()
	withShares(t, func(t *testing.T, n *node, family int) {
		ask := func(i int, to netip.AddrPort) outcome {
			return n.run(bpf.NetdevIngress, ifUplink, coming(on(client[family], 4000+uint16(i)), to).bytes(t))
		}
		first, second := on(balancer[family], 80), on(balancer[family], 81)
		n.serve(1, first, loadbalancer.UDP, 0, on(podA.addr(family), 8080))
		n.serve(2, second, loadbalancer.UDP, 0, on(podB.addr(family), 8080))
		for i := range natShare {
			n.did(ask(i, first), actUnspec)
		}
		n.wantDropReason(ask(natShare, first), events.NATShare)
		n.did(ask(natShare, second), actUnspec)
		n.wantTranslations(podA.id, family, natShare)
		n.wantTranslations(podB.id, family, 1)
		n.did(n.sendFrom(podB, going(on(podB.addr(family), 40000), on(client[family], 53)).bytes(t)), actUnspec)
	})
}

// Outside clients with backends on other nodes count together, and leave entries for other flows: of pods, and of clients of local pods.
func TestPrivilegedReal_ClientsOfRemoteBackendsLeaveCapacity(t *testing.T) {
	t.Parallel()
	s := newSurroundings(t, ethernetOnly)
	const quarters = 3 // of the possible flows; clients leave a sixteenth of these
	rest := map[int]int32{4: bpf.NatMax / 2 / 4 * quarters / 16 * 15, 6: bpf.NatMax / 2 / 2 / 4 * quarters / 16 * 15}
	for _, family := range families {
		here, there := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
		near, far := on(nodeOut[family], 30001), on(balancer[family], 53)
		s.serve(uint32(family), near, loadbalancer.UDP, 0, portOf(here))
		s.serve(uint32(family)*10, far, loadbalancer.UDP, 0, portOf(there))
		count := func() (c bpf.NatCount) {
			check(t, s.maps[bpf.MapNatFlows].Lookup(uint32(0), &c))
			return c
		}
		occupied := count()
		*map[int]*int32{4: &occupied.Ipv4, 6: &occupied.Ipv6}[family] = rest[family] - 1
		s.update(bpf.MapNatFlows, uint32(0), occupied)
		from := listenUDP(t, s.clients, client[family])
		s.talk(t, from, far, there, 10) // the last one
		if got := map[int]int32{4: count().Ipv4, 6: count().Ipv6}[family]; got != rest[family] {
			t.Fatalf("IPv%d: %d flows count, want %d", family, got, rest[family])
		}
		overQuota := listenUDP(t, s.clients, client[family])
		if _, err := overQuota.WriteToUDPAddrPort([]byte("hello"), far); err != nil {
			t.Fatal(err)
		}
		s.talk(t, from, far, there, 10)
		s.talk(t, overQuota, near, here, 10)
		s.talk(t, here, portOf(from), from, 10)
		if event := s.nextEvent(); event == nil || event.Reason != events.NATShare {
			t.Errorf("IPv%d: event %+v", family, event)
		}
	}
}
