package tests

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// nodePair are two nodes that differ only in the fast path.
type nodePair struct{ fast, slow *node }

func newNodePair(t *testing.T) nodePair {
	t.Helper()
	with := func(fast uint32) *node {
		return newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableFastPath: fast}, nil)
	}
	return nodePair{with(1), with(0)}
}

// both makes the same change to both nodes.
func (w nodePair) both(do func(n *node)) {
	do(w.fast)
	do(w.slow)
}

// send runs one packet through both nodes and compares action, packet, mark and reason.
func (w nodePair) send(t *testing.T, program string, in skBuff, packet []byte) outcome {
	t.Helper()
	w.slow.ns.Enter() // both namespaces have the same devices
	a, b := w.fast.runSkb(program, in, packet), w.slow.runSkb(program, in, packet)
	x, y := w.fast.event(), w.slow.event()
	w.both(func(n *node) {
		for _, id := range []uint16{0, podA.id, podB.id} {
			n.refill(id)
		}
	})
	if a.action != b.action || a.mark != b.mark || !slices.Equal(a.packet, b.packet) || (x == nil) != (y == nil) || x != nil && x.Reason != y.Reason {
		t.Fatalf("%s of %x\nfast: action %d, mark %x, event %+v, packet %x\nslow: action %d, mark %x, event %+v, packet %x",
			program, packet, int32(a.action), a.mark, x, a.packet, int32(b.action), b.mark, y, b.packet)
	}
	return a
}

// equal compares the entries and counters of both nodes.
func (w nodePair) equal(t *testing.T, family int) {
	t.Helper()
	for _, class := range []string{"new", "burst", "est"} {
		fast, slow := w.fast.ctFlows(class, family), w.slow.ctFlows(class, family)
		if len(fast) != len(slow) {
			t.Fatalf("IPv%d, %s: fast has %d flows, slow %d", family, class, len(fast), len(slow))
		}
		for key, a := range fast {
			b, ok := slow[key]
			for _, e := range []*bpf.CtEntry{&a, &b} {
				e.Created, e.Expires = 0, 0      // the clock advances between the two
				if bpf.CtPackets(e) >= ctExact { // the samples differ
					e.Packets, e.Bytes = ctExact, 0
				}
				if class == "est" { // only flows that are not established use it
					e.Flags &^= bpf.CtReplied
				}
			}
			if !ok || a != b {
				t.Fatalf("IPv%d, %s, %x:\nfast %+v\nslow %+v", family, class, key, a, b)
			}
		}
	}
	for reason := range 256 {
		for _, direction := range []uint8{bpf.DirectionIngress, bpf.DirectionEgress} {
			if a, b := w.fast.count(events.Reason(reason), direction), w.slow.count(events.Reason(reason), direction); a != b {
				t.Fatalf("reason %d, direction %d: fast counts %+v, slow %+v", reason, direction, a, b)
			}
		}
	}
}

// fastTraffic returns packets of pods in both directions for tests of the fast path: complete connections of few ports, so that packets meet flows in every
// state.
func fastTraffic(t *testing.T, random *rand.Rand, family int) (program string, in skBuff, packet []byte) {
	t.Helper()
	sport, dport := 1000+uint16(random.IntN(3)), 80+uint16(random.IntN(2))
	flags := []string{"S", "SA", "A", "A", "A", "A", "FA", "RA", "R"}[random.IntN(9)]
	kind := func(f flow) []byte {
		switch random.IntN(8) {
		case 0, 1:
			return f.bytes(t)
		case 2:
			return f.echo(t, random.IntN(2) == 0, sport)
		}
		return f.tcp(t, flags)
	}
	ttl := []uint8{64, 64, 64, 2, 1}[random.IntN(5)]
	a, b, far := podA.addr(family), podB.addr(family), outside[family]
	switch random.IntN(6) {
	case 0, 1:
		program, in.Ifindex = bpf.PodEgress, ifPodA
		packet = kind(sent(podA, a, b).ports(sport, dport).withTTL(ttl))
	case 2:
		program, in.Ifindex = bpf.PodEgress, ifPodB
		packet = kind(sent(podB, b, a).ports(dport, sport).withTTL(ttl))
	case 3:
		program, in.Ifindex = bpf.PodEgress, ifPodA
		packet = kind(sent(podA, a, far).ports(sport, dport).withTTL(ttl))
	default:
		program, in = bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}
		packet = kind(received(podA, far, a).ports(dport, sport).withTTL(ttl))
	}
	if program == bpf.PodEgress && random.IntN(12) == 0 {
		in.Ifindex = []uint32{ifPodA, ifPodB, ifUnmanaged}[random.IntN(3)]
	}
	if random.IntN(8) == 0 {
		packet = mutate(random, packet)
	}
	return program, in, packet
}

// For random packets and random changes, the fast path behaves like the slow path.
func TestPrivilegedFast_EqualsSlowPath(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		w, random := newNodePair(t), testseed.New(t)
		delivered := 0
		for i := range 12_000 {
			switch random.IntN(150) {
			case 0: // a policy changes
				w.both(func(n *node) { n.closed(podB) })
			case 1:
				w.both(func(n *node) {
					n.facts(podB, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = bpf.PolicyAllowAll, 0 })
				})
			case 2: // addresses get another identity, or CIDRs another name
				slot := uint32(random.IntN(2))
				w.both(func(n *node) {
					n.raise(bpf.MapEpochs, slot)
					n.raise(bpf.MapEpochShards, bpf.EpochShard(outside[family]))
				})
			case 3: // time passes
				w.both(func(n *node) {
					n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
					n.changeFlows("new", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
				})
			case 4: // an endpoint is deleted, and created again with other link addresses
				w.both(func(n *node) {
					n.update(bpf.MapEndpointFacts, uint32(podB.id), bpf.EndpointFacts{Revision: 1<<20 + uint32(i)})
				})
			case 6: // a service is created or deleted at an address outside
				key := bpf.NewServiceKey(loadbalancer.Address{Addr: outside[family], Port: 80, Protocol: loadbalancer.UDP}, bpf.ScopeExternal)
				w.both(func(n *node) {
					n.update(bpf.MapBackends, uint32(100), bpf.NewBackend(loadbalancer.Address{Addr: podB.addr(family), Port: backendPort, Protocol: loadbalancer.UDP}, 0))
					n.update(bpf.MapServiceSlots, uint32(40), uint32(100))
					n.update(bpf.MapServices, key, bpf.Service{Id: serviceID, First: 40, Count: 1})
				})
			case 7: // with its flows, which the agent deletes
				key := bpf.NewServiceKey(loadbalancer.Address{Addr: outside[family], Port: 80, Protocol: loadbalancer.UDP}, bpf.ScopeExternal)
				w.both(func(n *node) {
					_ = n.maps[bpf.MapServices].Delete(key)
					clearMap(n.t, n, bpf.MapNat4, func(bpf.NatKey4) bool { return true })
					clearMap(n.t, n, bpf.MapNat6, func(bpf.NatKey6) bool { return true })
				})
			case 5:
				facts := podB.facts()
				facts.Revision = 1<<20 + uint32(i)
				w.both(func(n *node) { n.update(bpf.MapEndpointFacts, uint32(podB.id), facts) })
			}
			program, in, packet := fastTraffic(t, random, family)
			if w.send(t, program, in, packet).action != actShot {
				delivered++
			}
			if i%500 == 0 {
				w.equal(t, family)
			}
		}
		if delivered < 2000 {
			t.Errorf("IPv%d: only %d packets went on: the test sees too little", family, delivered)
		}
	}
}

// A datagram without a reply is sent again: when its destination has become a service, it goes to a backend.
func TestPrivilegedFast_UnrepliedDatagram_ReachesNewService(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		for range 3 {
			n.passes(podA, serviceRequest(family, 5000).bytes(t), actOK)
		}
		n.service(family, protoUDP, at(podB.addr(family)))
		n.wantPacket(n.run(bpf.PodEgress, ifPodA, serviceRequest(family, 5000).bytes(t)), actRedirect, translatedRequest(family, podB, 5000).bytes(t))
	})
}

// The clock of the fast path advances with the kernel's: a flow whose packets all take the fast path does not expire.
func TestPrivilegedFast_ClockAdvances(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		for start := now(t); now(t)-start < 2; time.Sleep(10 * time.Millisecond) { // about 2 s: ticks cannot be faked
			n.passes(podA, open.tcp(t, "A"), actRedirect)
		}
		before := now(t)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		// The fast path may use a tick that ended up to two jiffies ago.
		if expires, after := n.onlyFlow("est", family).Expires, now(t); expires < before+lifeTCP-1 || expires > after+lifeTCP {
			t.Errorf("the flow expires in tick %d, want %d to %d", expires, before+lifeTCP-1, after+lifeTCP)
		}
	})
}

// isFast reports whether a packet of a pod takes the fast path: the fast path does not change the scratch memory, which every other packet clears.
func (n *node) isFast(p pod, packet []byte) bool {
	n.t.Helper()
	var zero uint32
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		n.t.Fatal(err)
	}
	_, work := n.podMaps()
	mark := make([][]byte, cpus)
	for i := range mark {
		mark[i] = bytes.Repeat([]byte{0xa5}, int(work.ValueSize()))
	}
	if err := work.Put(zero, mark); err != nil {
		n.t.Fatal(err)
	}
	n.run(bpf.PodEgress, p.ifindex, packet)
	var after [][]byte
	if err := work.Lookup(zero, &after); err != nil {
		n.t.Fatal(err)
	}
	return slices.EqualFunc(mark, after, bytes.Equal)
}

// Packets that do not change their flow take the fast path, in both directions and also without replies, and no other packets do.
func TestPrivilegedFast_TakesEstablishedFlows(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		want := func(name string, want bool, p pod, packet []byte) {
			t.Helper()
			if got := n.isFast(p, packet); got != want {
				t.Errorf("%s: fast is %v, want %v", name, got, want)
			}
			if event := n.event(); event != nil {
				t.Errorf("%s: dropped for %q", name, event.Reason)
			}
		}
		open, back := opened(t, n, family)
		want("a SYN", false, podA, open.tcp(t, "S"))
		want("its reply", false, podB, back.tcp(t, "SA"))
		want("the segment that establishes", false, podA, open.tcp(t, "A"))
		want("a segment", true, podA, open.tcp(t, "A"))
		want("one back", true, podB, back.tcp(t, "A"))
		want("a FIN", false, podA, open.tcp(t, "FA"))
		want("a segment back after it", true, podB, back.tcp(t, "A"))
		want("its acknowledgement", true, podA, open.tcp(t, "A"))

		leaves := sent(podA, podA.addr(family), outside[family]).ports(6000, 53)
		want("a first datagram", false, podA, leaves.bytes(t))
		want("a second one without a reply", true, podA, leaves.bytes(t))
		n.arrives(podA, ifUplink, outsideTo(podA, outside[family], 53, 6000).bytes(t))
		want("the one that establishes", false, podA, leaves.bytes(t))
		want("one more", true, podA, leaves.bytes(t))
	})
}
