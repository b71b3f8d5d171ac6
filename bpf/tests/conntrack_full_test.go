package tests

import (
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// When the table is full, established flows continue, new ones are dropped with a specific reason, and the collector gets a signal.
func TestPrivilegedConntrack_Full(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			const capacity = 16
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0}, map[string]uint32{ctMap("est", family): capacity})
			ask := func(port uint16) flow { return sent(podA, podA.addr(family), podB.addr(family)).ports(port, 53) }
			first := uint16(1000)
			count := fill(t, n, func(i int) flow { return ask(first + uint16(i)) })
			if count < capacity {
				t.Fatalf("%d flows found room, want %d", count, capacity)
			}

			dropped := ask(first + uint16(count))
			before := n.count(events.FlowsFull, bpf.DirectionEgress)
			n.wantEgressDrop(podA, dropped.bytes(t), events.FlowsFull)
			if after := n.count(events.FlowsFull, bpf.DirectionEgress); after.Packets != before.Packets+1 {
				t.Errorf("counted %d times", after.Packets-before.Packets)
			}
			if flows := len(n.ctEntries("est", family)); flows != count || n.charged(podA) != uint32(count) {
				t.Errorf("%d flows, %d charged, want %d", flows, n.charged(podA), count)
			}
			if s := n.signal(); s != (bpf.CtSignal{Family: uint32(family)}) {
				t.Errorf("signal %+v", s)
			}
			n.passes(podA, ask(first).bytes(t), actRedirect)
			n.passes(podB, ask(first).back(podB).bytes(t), actRedirect)

			// When the table has a free entry, the retransmitted packet passes.
			var key []byte
			if err := n.maps[ctMap("est", family)].NextKey(nil, &key); err != nil {
				t.Fatal(err)
			}
			if err := n.maps[ctMap("est", family)].Delete(key); err != nil {
				t.Fatal(err)
			}
			n.passes(podA, dropped.bytes(t), actRedirect)
		})
	}
}

// CPUs that establish the same flow at the same time all forward their packet, and the flow is counted once.
func TestPrivilegedConntrack_ConcurrentEstablish_CountsOnce(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		const flows, workers = 200, 4
		packets := make([][]byte, flows)
		for i := range packets {
			ask := sent(podA, podA.addr(family), podB.addr(family)).ports(1000+uint16(i), 53)
			packets[i] = ask.bytes(t)
			n.passes(podA, packets[i], actRedirect)
			n.passes(podB, ask.back(podB).bytes(t), actRedirect)
		}
		var dropped [workers]int
		var wait sync.WaitGroup
		for w := range workers {
			wait.Go(func() {
				n.ns.Do(func() {
					for _, p := range packets {
						action, err := n.program(bpf.PodEgress).Run(&ebpf.RunOptions{Data: p, DataOut: make([]byte, len(p)+256), Context: skBuff{Ifindex: ifPodA}})
						check(t, err)
						if action != actRedirect {
							dropped[w]++
						}
					}
				})
			})
		}
		wait.Wait()
		if dropped != [workers]int{} {
			t.Errorf("of %d packets of each CPU were refused: %d; the first: %+v", flows, dropped, n.event())
		}
		if entries := len(n.ctEntries("est", family)); entries != flows || n.charged(podA) != flows {
			t.Errorf("%d flows, %d charged, want %d", entries, n.charged(podA), flows)
		}
	})
}

// fill establishes flows of pod a until one is dropped, and returns the number of established flows.
func fill(t *testing.T, n *node, ask func(i int) flow) int {
	t.Helper()
	return fillFrom(t, n, podA, podB, ask)
}

func fillFrom(t *testing.T, n *node, from, to pod, ask func(i int) flow) int {
	t.Helper()
	for i := range 64 {
		n.passes(from, ask(i).bytes(t), actRedirect)
		n.passes(to, ask(i).back(to).bytes(t), actRedirect)
		got := n.run(bpf.PodEgress, from.ifindex, ask(i).bytes(t))
		if got.action == actShot {
			n.event()
			return i
		}
	}
	t.Fatal("the table never fills")
	return 0
}

// charged returns the counter of established flows of an endpoint.
func (n *node) charged(p pod) (count uint32) {
	n.t.Helper()
	if err := n.maps[bpf.MapCtFlows].Lookup(uint32(p.id), &count); err != nil {
		n.t.Fatal(err)
	}
	return count
}

// An endpoint that has used up its quota opens no more flows. Other endpoints do, and its own flows continue.
func TestPrivilegedConntrack_Share(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableCtShare: 5}, nil)
			ask := func(i int) flow {
				return sent(podA, podA.addr(family), podB.addr(family)).ports(1000+uint16(i), 53)
			}
			if count := fill(t, n, ask); count != 5 || n.charged(podA) != 5 || n.charged(podB) != 0 {
				t.Errorf("%d flows, charged %d and %d, want 5, 5 and none", count, n.charged(podA), n.charged(podB))
			}
			n.wantEgressDrop(podA, ask(5).bytes(t), events.FlowsShare)
			if s := n.signal(); s != (bpf.CtSignal{Family: uint32(family), Endpoint: uint32(podA.id)}) {
				t.Errorf("signal %+v", s)
			}
			n.passes(podB, ask(0).back(podB).bytes(t), actRedirect)

			// A flow from outside counts for its responder.
			n.arrives(podB, ifUplink, outsideTo(podB, outside[family], 9, 53).bytes(t))
			n.passes(podB, outsideTo(podB, outside[family], 9, 53).back(podB).bytes(t), actOK)
			n.arrives(podB, ifUplink, outsideTo(podB, outside[family], 9, 53).bytes(t))
			if n.charged(podB) != 1 {
				t.Errorf("pod b is charged %d flows, want 1", n.charged(podB))
			}
		})
	}
}

// Hosts that forge the source addresses of their SYNs establish no flows, however many SYN-ACKs the pods send.
func TestPrivilegedConntrack_ForgedSourcesEstablishNothing(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for i := range uint16(300) {
			in := outsideTo(podA, outside[family], 1000+i, 80)
			n.arrives(podA, ifUplink, in.tcp(t, "S"))
			n.passes(podA, in.back(podA).tcp(t, "SA"), actOK)
			if i%2 == 0 { // the owner of the address resets the connection
				n.arrives(podA, ifUplink, in.tcp(t, "R"))
			}
		}
		if flows := len(n.ctEntries("est", family)); flows != 0 || n.charged(podA) != 0 {
			t.Errorf("%d flows are established, %d charged, want none", flows, n.charged(podA))
		}
	})
}

// Whatever flows other endpoints have, each endpoint can have its guarantee.
func TestPrivilegedConntrack_Guarantee(t *testing.T) {
	t.Parallel()
	const guarantee, beyond = 2, 3
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableCtShare: 100, bpf.VariableCtGuarantee: guarantee, bpf.VariableCtBeyond: beyond}, nil)
			from := func(p, to pod) func(int) flow {
				return func(i int) flow { return sent(p, p.addr(family), to.addr(family)).ports(1000+uint16(i), 53) }
			}
			if count := fillFrom(t, n, podA, podB, from(podA, podB)); count != guarantee+beyond {
				t.Errorf("a pod alone has %d flows, want %d", count, guarantee+beyond)
			}
			if count := fillFrom(t, n, podB, podA, from(podB, podA)); count != guarantee {
				t.Errorf("a pod beside one that has all the rest has %d flows, want %d", count, guarantee)
			}
			if got := n.charged(pod{}); got != beyond {
				t.Errorf("%d flows count as beyond guarantees, want %d", got, beyond)
			}
			n.wantFlows(family, 2, 2*guarantee+beyond) // dropped flows stay new ones
		})
	}
}

// A pod with too many new flows evicts only its own flows.
func TestPrivilegedConntrack_NewFlowsOfPod_EvictOnlyOwn(t *testing.T) {
	t.Parallel()
	const rate = 4 // a slow test exceeds it in a tick, too
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableCtNewRate: rate}, nil)
			n.closed(podB)
			open := sent(podB, podB.addr(family), outside[family]).ports(4000, 443)
			n.passes(podB, open.tcp(t, "S"), actOK)
			began := now(t)
			for i := range uint16(3000) {
				n.passes(podA, sent(podA, podA.addr(family), outside[family]).ports(1000+i, 9).bytes(t), actOK)
			}
			ticks := int(now(t)-began) + 1
			n.arrives(podB, ifUplink, outsideTo(podB, outside[family], 443, 4000).tcp(t, "SA"))
			if fresh := len(n.ctEntries("new", family)); fresh > 1+rate*ticks {
				t.Errorf("%d new flows in %d ticks, want %d at most", fresh, ticks, 1+rate*ticks)
			}
			// A flow of the burst table is established like any other, and removed from that table.
			port := n.portInBurst(family)
			before := len(n.ctEntries("burst", family))
			n.arrives(podA, ifUplink, outsideTo(podA, outside[family], 9, port).bytes(t))
			n.passes(podA, sent(podA, podA.addr(family), outside[family]).ports(port, 9).bytes(t), actOK)
			if est, after := len(n.ctEntries("est", family)), len(n.ctEntries("burst", family)); est != 1 || after != before-1 {
				t.Errorf("%d flows are established, want 1; the burst has %d, it had %d", est, after, before)
			}
		})
	}
}

// portInBurst returns the source port of a flow in the burst table.
func (n *node) portInBurst(family int) uint16 {
	n.t.Helper()
	var e bpf.CtEntry
	all := n.maps[ctMap("burst", family)].Iterate()
	if family == 4 {
		var k bpf.CtKey4
		if all.Next(&k, &e) {
			return bpf.NewCtFlow4(&k, &e).Initiator.Port()
		}
	} else {
		var k bpf.CtKey6
		if all.Next(&k, &e) {
			return bpf.NewCtFlow6(&k, &e).Initiator.Port()
		}
	}
	n.t.Fatalf("the burst table is empty: %v", all.Err())
	return 0
}

// A host that starts many flows to a pod evicts no flow that the pod initiates.
func TestPrivilegedConntrack_InboundFlood_KeepsFlowsOfPod(t *testing.T) {
	t.Parallel()
	const rate = 4 // a slow test exceeds it in a tick, too
	for _, family := range families {
		n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableCtNewRate: rate}, nil)
		for turn := uint16(0); ; turn++ {
			if turn == 100 {
				t.Fatal("no turn of the flood and the pod ends in the tick in which it began")
			}
			begun := now(t)
			for i := range uint16(2 * rate) {
				n.run(bpf.PodIngress, ifPodA, outsideTo(podA, outside[family], 10000+turn*2*rate+i, 9).bytes(t))
			}
			fresh := len(n.ctEntries("new", family))
			n.passes(podA, sent(podA, podA.addr(family), outside[family]).ports(4000+turn, 443).tcp(t, "S"), actOK)
			after := len(n.ctEntries("new", family))
			if now(t) != begun { // the pod started its flow in another tick than the flood
				continue
			}
			if after != fresh+1 {
				t.Errorf("IPv%d: the flow of the flooded pod is not among the %d new ones", family, after)
			}
			break
		}
	}
}
