package tests

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// resized returns the same node with programs for a resize of these maps of flows: they have empty maps of another size, and the maps of n are their previous
// ones.
func (n *node) resized(number uint32, names ...string) *node {
	n.t.Helper()
	specs, err := bpf.MapSpecs()
	if err != nil {
		n.t.Fatal(err)
	}
	r := *n
	r.maps, r.constants = maps.Clone(n.maps), maps.Clone(n.constants)
	r.constants[bpf.VariableResizeNumber] = number
	for _, name := range names {
		r.constants[bpf.VariableResizeMaps] |= bpf.ResizeMap(name)
		spec := specs[name]
		spec.MaxEntries = n.maps[name].MaxEntries() + 1000
		m, err := ebpf.NewMap(spec)
		if err != nil {
			n.t.Fatalf("create map %s: %v", name, err)
		}
		n.t.Cleanup(func() { _ = m.Close() })
		r.maps[name], r.maps[bpf.PreviousName(name)] = m, n.maps[name]
	}
	r.programs = newPrograms(n.t)
	return &r
}

// reloaded returns the same node with programs that know only its current maps.
func (n *node) reloaded() *node {
	n.t.Helper()
	r := *n
	r.maps, r.constants = maps.Clone(n.maps), maps.Clone(n.constants)
	r.constants[bpf.VariableResizeNumber], r.constants[bpf.VariableResizeMaps] = 0, 0
	for _, name := range bpf.FlowMaps() {
		delete(r.maps, bpf.PreviousName(name))
	}
	r.programs = newPrograms(n.t)
	return &r
}

func (n *node) setResize(number uint32, phase bpf.ResizePhase) {
	n.t.Helper()
	n.update(bpf.MapResizeState, uint32(0), bpf.ResizeState(number, phase))
}

// migrate copies the entries of the previous maps for which chosen returns true to the current ones, as the agent does.
func (n *node) migrate(chosen func() bool) {
	n.t.Helper()
	for _, name := range bpf.FlowMaps() {
		if n.maps[bpf.PreviousName(name)] == nil {
			continue
		}
		var key, value []byte
		all := n.maps[bpf.PreviousName(name)].Iterate()
		for all.Next(&key, &value) {
			if !chosen() {
				continue
			}
			if err := n.maps[name].Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				n.t.Fatal(err)
			}
		}
		if err := all.Err(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// wantEntries checks the numbers of established and translated flows of a family in the maps of the node.
func (n *node) wantEntries(when string, family, established, translated int) {
	n.t.Helper()
	if est, nat := len(n.ctEntries("est", family)), n.natFlows(family); est != established || nat != translated {
		n.t.Errorf("%s: %d established flows and %d entries of translated ones, want %d and %d", when, est, nat, established, translated)
	}
}

// Flows whose packets alternate between programs with a map of another size and programs that know only the previous one are created once and continue,
// whichever program processes their packets.
func TestPrivilegedResize_FlowsAlternateBetweenGenerations(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, previous *node, family int) {
		previous.service(family, protoTCP, at(podB.addr(family)))
		previous.closed(podA)
		const number = 5
		present := previous.resized(number, bpf.FlowMaps()...)
		connect := func(sport uint16, begins, continues *node) {
			t.Helper()
			ask, reply := serviceRequest(family, sport), sent(podB, podB.addr(family), podA.addr(family)).ports(backendPort, sport)
			begins.passes(podA, ask.tcp(t, "S"), actRedirect)
			continues.passes(podB, reply.tcp(t, "SA"), actRedirect)
			continues.passes(podA, ask.tcp(t, "A"), actRedirect)
			begins.passes(podB, reply.tcp(t, "A"), actRedirect)
			begins.passes(podA, ask.tcp(t, "A"), actRedirect)
		}
		previous.setResize(number, bpf.ResizeBefore)
		connect(5001, previous, present)
		connect(5002, present, previous)
		previous.wantEntries("before, the former map", family, 2, 4)
		present.wantEntries("before, the present map", family, 0, 0)

		previous.setResize(number, bpf.ResizeDuring)
		connect(5003, present, present)
		previous.wantEntries("during, the former map", family, 3, 6)
		present.wantEntries("during, the present map", family, 1, 2)
		// A connection starts again after a reset: both maps lose its translation and get another one.
		present.passes(podA, serviceRequest(family, 5001).tcp(t, "R"), actRedirect)
		connect(5001, present, present)
		previous.wantEntries("after a reset, the former map", family, 3, 6)
		present.migrate(func() bool { return true })
		present.wantEntries("copied", family, 3, 6)

		previous.setResize(number, bpf.ResizeNone)
		connect(5004, present, present.reloaded())
		previous.wantEntries("at the end, the former map", family, 3, 6)
		present.wantEntries("at the end, the present map", family, 4, 8)
	})
}

// connectToService opens a connection of pod a to the service, whose backend is pod b, and returns its first direction.
func (n *node) connectToService(family int) flow {
	n.t.Helper()
	ask, reply := serviceRequest(family, 5001), sent(podB, podB.addr(family), podA.addr(family)).ports(backendPort, 5001)
	n.passes(podA, ask.tcp(n.t, "S"), actRedirect)
	n.passes(podB, reply.tcp(n.t, "SA"), actRedirect)
	n.passes(podA, ask.tcp(n.t, "A"), actRedirect)
	return ask
}

// A flow that is deleted while both maps have its entries is deleted from both.
func TestPrivilegedResize_DeletesInBoth(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, previous *node, family int) {
		previous.service(family, protoTCP, at(podB.addr(family)))
		const number = 1
		present := previous.resized(number, bpf.FlowMaps()...)
		previous.setResize(number, bpf.ResizeDuring)
		ask := present.connectToService(family)
		for _, n := range []*node{previous, present} {
			n.wantEntries("at first", family, 1, 2)
			n.natExpire(family)
		}
		// The translation has expired, so the segment belongs to no connection to the service, and the entries are deleted.
		present.run(bpf.PodEgress, ifPodA, ask.tcp(t, "A"))
		if event := present.event(); event == nil || event.Reason != events.NoMapping {
			t.Errorf("a segment of a connection that is over: %+v", event)
		}
		// A segment to the backend without the service deletes the remaining entries.
		present.passes(podA, sent(podA, podA.addr(family), podB.addr(family)).ports(5001, backendPort).tcp(t, "S"), actRedirect)
		for _, n := range []*node{previous, present} {
			n.wantEntries("at the end", family, 0, 0)
		}
	})
}

// If two CPUs end a flow at the same time, only one of them decrements its counter: the second CPU runs when only the current map still has the entry.
func TestPrivilegedResize_DischargesOnce(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, previous *node, family int) {
		previous.service(family, protoTCP, at(podB.addr(family)))
		const number = 1
		present := previous.resized(number, bpf.FlowMaps()...)
		previous.setResize(number, bpf.ResizeDuring)
		ask := present.connectToService(family)
		charged := present.charged(podA)
		present.wantTranslations(podA.id, family, 1)
		present.natExpire(family)
		for _, name := range []string{ctMap("est", family), natMap(family)} { // as the other CPU does first
			var key []byte
			for previous.maps[name].NextKey(nil, &key) == nil {
				if err := previous.maps[name].Delete(key); err != nil {
					t.Fatal(err)
				}
			}
		}
		present.run(bpf.PodEgress, ifPodA, ask.tcp(t, "A"))
		present.event()
		present.passes(podA, sent(podA, podA.addr(family), podB.addr(family)).ports(5001, backendPort).tcp(t, "S"), actRedirect)
		present.wantEntries("at the end", family, 0, 0)
		present.wantTranslations(podA.id, family, 1)
		if got := present.charged(podA); got != charged {
			t.Errorf("%d flows count, want %d: the other CPU discharges it", int32(got), int32(charged))
		}
	})
}

// A flow for which one of two maps is full is in neither.
func TestPrivilegedResize_OneMapFull_CreatesInNeither(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, previous *node, family int) {
		previous.service(family, protoTCP, at(podB.addr(family)))
		specs, err := bpf.MapSpecs()
		if err != nil {
			t.Fatal(err)
		}
		const number = 1
		previous.setResize(number, bpf.ResizeDuring)
		withFull := func(name string) *node {
			t.Helper()
			present, spec := previous.resized(number, bpf.FlowMaps()...), specs[name]
			spec.MaxEntries = 1
			full, err := ebpf.NewMap(spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = full.Close() })
			if err := full.Put(make([]byte, spec.KeySize), make([]byte, spec.ValueSize)); err != nil {
				t.Fatal(err)
			}
			present.maps[name] = full
			return present
		}
		ask, reply := serviceRequest(family, 5001), sent(podB, podB.addr(family), podA.addr(family)).ports(backendPort, 5001)
		present := withFull(natMap(family))
		present.wantDrop(bpf.PodEgress, ifPodA, ask.tcp(t, "S"), events.NATFull, bpf.DirectionEgress)
		previous.wantEntries("no room for the translation", family, 0, 0)
		present = withFull(ctMap("est", family))
		present.passes(podA, ask.tcp(t, "S"), actRedirect)
		present.passes(podB, reply.tcp(t, "SA"), actRedirect)
		present.run(bpf.PodEgress, ifPodA, ask.tcp(t, "A"))
		if event := present.event(); event == nil || event.Reason != events.FlowsFull {
			t.Errorf("a flow for which there is no room: %+v", event)
		}
		previous.wantEntries("no room for the flow", family, 0, 2)
	})
}

// resizeTraffic is fastTraffic plus packets between pod a and pod b as a service.
func resizeTraffic(t *testing.T, random *rand.Rand, family int) (program string, in skBuff, packet []byte) {
	t.Helper()
	if random.IntN(2) == 0 {
		return fastTraffic(t, random, family)
	}
	sport := 5000 + uint16(random.IntN(3))
	flags := []string{"S", "S", "SA", "A", "A", "A", "A", "FA", "R"}[random.IntN(9)]
	if random.IntN(2) == 0 {
		return bpf.PodEgress, skBuff{Ifindex: ifPodA}, serviceRequest(family, sport).tcp(t, flags)
	}
	return bpf.PodEgress, skBuff{Ifindex: ifPodB}, sent(podB, podB.addr(family), podA.addr(family)).ports(backendPort, sport).tcp(t, flags)
}

// change is a node whose maps of flows are resized, and another one whose maps never are.
type change struct {
	t       *testing.T
	family  int
	random  *rand.Rand
	never   *node
	hooks   []*node // nodes whose programs may process a packet
	holders []*node // nodes whose maps of flows have entries
}

func (c *change) all(do func(n *node)) {
	do(c.never)
	do(c.hooks[0])
}

// equal checks that a node has the same flows, and the same counters, as without a resize.
func (c *change) equal(n *node) {
	c.t.Helper()
	nodePair{n, c.never}.equal(c.t, c.family)
	for _, p := range []pod{podA, podB} {
		if got, want := n.charged(p), c.never.charged(p); got != want {
			c.t.Errorf("%d established flows count for endpoint %d, want %d", int32(got), p.id, int32(want))
		}
		var got, want bpf.NatCount
		if err := errors.Join(n.maps[bpf.MapNatFlows].Lookup(uint32(p.id), &got), c.never.maps[bpf.MapNatFlows].Lookup(uint32(p.id), &want)); err != nil || got != want {
			c.t.Errorf("%+v translated flows count for endpoint %d, want %+v: %v", got, p.id, want, err)
		}
	}
}

// pass sends packets, each through one of the possible programs, and compares the results with programs whose maps never change.
func (c *change) pass(packets int) (delivered int) {
	c.t.Helper()
	for range packets {
		switch c.random.IntN(150) {
		case 0:
			c.all(func(n *node) { n.closed(podB) })
		case 1:
			c.all(func(n *node) {
				n.facts(podB, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = bpf.PolicyAllowAll, 0 })
			})
		case 2:
			slot := uint32(c.random.IntN(2))
			c.all(func(n *node) {
				n.raise(bpf.MapEpochs, slot)
				n.raise(bpf.MapEpochShards, bpf.EpochShard(outside[c.family]))
			})
		case 3:
			for _, n := range append(c.holders, c.never) {
				n.natExpire(c.family)
				for _, class := range []string{"est", "new"} {
					n.changeFlows(class, c.family, func(e *bpf.CtEntry) {
						if e.Flags&bpf.CtTranslated == 0 { // a reply would restore it, without a service; the next flow would get a random port
							e.Expires = now(c.t) - 1
						}
					})
				}
			}
		}
		program, in, packet := resizeTraffic(c.t, c.random, c.family)
		if (nodePair{c.hooks[c.random.IntN(len(c.hooks))], c.never}).send(c.t, program, in, packet).action != actShot {
			delivered++
		}
	}
	return delivered
}

// For random packets, changes and programs, all results are as if the maps of flows had never been resized, also when another resize starts while hooks still
// run programs for the previous one, and when only some maps are resized.
func TestPrivilegedResize_ResultsEqualNoResize(t *testing.T) {
	t.Parallel()
	// No flow expires by itself on a slow machine.
	constants := map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableCtTCPSynTimeout: 3000, bpf.VariableCtTCPCloseTimeout: 3000, bpf.VariableCtAnyTimeout: 3000}
	for _, family := range families {
		for _, names := range [][]string{bpf.FlowMaps(), {bpf.MapCtEst4, bpf.MapCtEst6}, {bpf.MapNat4, bpf.MapNat6}} {
			t.Run(fmt.Sprintf("IPv%d of %v", family, names), func(t *testing.T) { asWithoutResize(t, family, constants, names) })
		}
	}
}

func asWithoutResize(t *testing.T, family int, constants map[string]uint32, names []string) {
	t.Helper()
	never, present := newNodeWith(t, constants, nil), newNodeWith(t, constants, nil)
	c := &change{t: t, family: family, random: testseed.New(t), never: never, hooks: []*node{present}, holders: []*node{present}}
	c.all(func(n *node) {
		n.service(family, protoTCP, at(podB.addr(family)))
		n.closed(podA) // a reply without its flow would create one, for which connections to the service would get a random port
	})
	delivered := c.pass(500)
	for number := range uint32(2) {
		number++
		previous := present
		present = previous.resized(number, names...)
		present.setResize(number, bpf.ResizeBefore)
		c.hooks = append(c.hooks, present)
		delivered += c.pass(1000)
		for _, name := range names {
			if present.maps[name].NextKey(nil, make([]byte, present.maps[name].KeySize())) == nil {
				t.Errorf("the present map %s has entries while hooks are replaced", name)
			}
		}

		present.setResize(number, bpf.ResizeDuring)
		c.hooks, c.holders = []*node{present}, []*node{previous, present}
		for range 10 {
			present.migrate(func() bool { return c.random.IntN(10) == 0 })
			delivered += c.pass(100)
		}
		present.migrate(func() bool { return true })

		present.setResize(number, bpf.ResizeNone)
		c.holders = []*node{present}
		c.equal(present)
		c.hooks = append(c.hooks, present.reloaded())
		present = c.hooks[1]
		delivered += c.pass(500)
		c.equal(present)
	}
	if delivered < 1000 {
		t.Errorf("only %d packets went on: the test sees too little", delivered)
	}
}
