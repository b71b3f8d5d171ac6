package tests

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// opened is a connection of pod a to port 80 of pod b, the only traffic that the policy of pod b allows. Pod a allows no ingress.
func opened(t *testing.T, n *node, family int) (open, back flow) {
	t.Helper()
	n.ingress(podB, rule{kind: bpf.PolicyIdentity, identity: podA.facts().Identity, level: bpf.PolicyPort, protocol: protoTCP, first: 80})
	n.closed(podA)
	open = sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 80)
	return open, open.back(podB)
}

// closed denies all ingress of a pod.
func (n *node) closed(p pod) {
	n.t.Helper()
	shape := n.policy(policyID + 2)
	n.facts(p, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = policyID+2, shape })
}

func now(t testing.TB) uint32 {
	t.Helper()
	ticks, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	return ticks
}

// wantTimeout checks that the only flow of a class expires this number of ticks after the last packet.
func (n *node) wantTimeout(class string, family int, want int) {
	n.t.Helper()
	left := int(n.onlyFlow(class, family).Expires - now(n.t))
	if passed := int(bpf.CtTicks(time.Since(n.ran))); left < want-passed-1 || left > want {
		n.t.Errorf("the flow ends in %d ticks, want %d from the last packet on, which was sent at most %d ticks ago", left, want, passed)
	}
}

// A connection from its first packet to its last: replies pass although no rule allows them, and the flow becomes established with the first segment that its
// initiator sends after a reply.
func TestPrivilegedConntrack_TCP(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.wantFlows(family, 1, 0)
		n.wantTimeout("new", family, lifeSYN)

		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "S"), actRedirect) // the SYN-ACK was lost
		n.wantFlows(family, 1, 0)
		n.wantTimeout("new", family, lifeSYN)

		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.wantFlows(family, 0, 1)
		n.wantTimeout("est", family, lifeTCP)
		flow := n.onlyFlow("est", family)
		if flow.Initiator != podA.id || flow.Responder != podB.id || flow.InitiatorIdentity != podA.facts().Identity ||
			flow.ResponderIdentity != podB.facts().Identity || flow.Packets != 5 || flow.Flags&^bpf.CtInitiatorSecond != bpf.CtEstablished|bpf.CtReplied {
			t.Errorf("flow %+v", flow)
		}

		// One side has closed its direction, the other continues.
		n.passes(podB, back.tcp(t, "FA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.wantTimeout("est", family, lifeTCP)
		n.passes(podA, open.tcp(t, "FA"), actRedirect)
		n.wantTimeout("est", family, lifeClose)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		n.wantFlows(family, 0, 1)
	})
}

func TestPrivilegedConntrack_Reset(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		// A rejected connection uses no entry of the established flows.
		n.passes(podB, back.tcp(t, "RA"), actRedirect)
		n.wantFlows(family, 1, 0)
		n.wantTimeout("new", family, lifeClose)
		// The next attempt with the same ports is a separate flow.
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.wantTimeout("new", family, lifeSYN)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		// The host whose address was forged as the source of the SYN resets the connection: that establishes no flow either.
		n.passes(podA, open.tcp(t, "R"), actRedirect)
		n.wantFlows(family, 1, 0)
		n.wantTimeout("new", family, lifeClose)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.wantFlows(family, 0, 1)
		n.passes(podA, open.tcp(t, "R"), actRedirect)
		n.wantTimeout("est", family, lifeClose)
	})
}

func TestPrivilegedConntrack_Datagrams(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.closed(podA)
		ask := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 53)
		n.passes(podA, ask.bytes(t), actRedirect)
		for range 2 { // independent of the number of replies
			n.passes(podB, ask.back(podB).bytes(t), actRedirect)
			n.wantFlows(family, 1, 0)
			n.wantTimeout("new", family, lifeAny)
		}
		n.passes(podA, ask.bytes(t), actRedirect)
		n.wantFlows(family, 0, 1)
		n.wantTimeout("est", family, lifeAny)
		// A packet from another port is no reply.
		n.wantEgressDrop(podB, ask.ports(5000, 54).back(podB).bytes(t), events.PolicyDenied)
		// A packet after the timeout is no reply either.
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires = now(t) - 1 })
		n.wantEgressDrop(podB, ask.back(podB).bytes(t), events.PolicyDenied)
		n.passes(podA, ask.bytes(t), actRedirect)
		n.passes(podB, ask.back(podB).bytes(t), actRedirect)
		n.wantFlows(family, 0, 1)
	})
}

// A packet that its flow forwards extends the lifetime of the flow, and is counted.
func TestPrivilegedConntrack_Refreshes(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Expires, e.Packets, e.Bytes = now(t)+lifeClose, 100, 1000 })
		packet := back.tcp(t, "A")
		n.passes(podB, packet, actRedirect)
		n.wantTimeout("est", family, lifeTCP)
		if f := n.onlyFlow("est", family); f.Packets != 101 || f.Bytes != 1000+uint64(len(packet)) {
			t.Errorf("flow %+v", f)
		}
	})
}

// A packet of an established flow causes no lookup in maps of policies or peers: it passes while all of them are empty.
func TestPrivilegedConntrack_Established_SkipsPolicyLookup(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		for _, flags := range []string{"S", "A"} {
			n.passes(podA, open.tcp(t, flags), actRedirect)
			n.passes(podB, back.tcp(t, flags+"A"), actRedirect)
		}
		clearMap[bpf.PolicyKey](t, n, bpf.MapPolicy, func(bpf.PolicyKey) bool { return true })
		clearMap[bpf.AddrKey](t, n, bpf.MapEndpoints, func(bpf.AddrKey) bool { return true })
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
	})
}

// A denied packet creates no entry.
func TestPrivilegedConntrack_DeniedCreatesNothing(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, _ := opened(t, n, family)
		n.wantEgressDrop(podA, open.ports(5000, 81).tcp(t, "S"), events.PolicyDenied)
		n.wantEgressDrop(podA, open.bytes(t), events.PolicyDenied)
		n.wantIngressDrop(podA, ifUplink, outsideTo(podA, outside[family], 1, 2).tcp(t, "S"), events.PolicyDenied)
		n.wantFlows(family, 0, 0)
	})
}

// A flow is evaluated again, in its original direction, when an endpoint or a named CIDR changes, even if the first packet after the change is a reply.
func TestPrivilegedConntrack_EvaluatedAgain(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		revision := func(p pod) func() { return func() { n.facts(p, func(*bpf.EndpointFacts) {}) } }
		for name, change := range map[string]func(){
			"facts of the initiator": revision(podA), "facts of the target": revision(podB),
			"a named CIDR": func() { n.raise(bpf.MapEpochs, bpf.EpochCIDRs) },
		} {
			for _, answer := range []bool{false, true} {
				open, back := opened(t, n, family)
				n.passes(podA, open.tcp(t, "S"), actRedirect)
				n.passes(podB, back.tcp(t, "SA"), actRedirect)
				n.passes(podA, open.tcp(t, "A"), actRedirect)
				sender, packet := podA, open.tcp(t, "A")
				if answer {
					sender, packet = podB, back.tcp(t, "A")
				}

				// The flow is still allowed and keeps its counts.
				before := n.onlyFlow("est", family)
				change()
				n.passes(sender, packet, actRedirect)
				after := n.onlyFlow("est", family)
				if after.Packets != before.Packets+1 || after.Created != before.Created || after.Flags != before.Flags {
					t.Errorf("%s, answer %v: %+v became %+v", name, answer, before, after)
				}
				// No change since: no policy lookup.
				n.policy(policyID)
				n.passes(sender, packet, actRedirect)
				// Denied: neither side can continue, and the responder does not become the initiator by sending again.
				change()
				n.wantEgressDrop(sender, packet, events.PolicyDenied)
				n.wantEgressDrop(podB, back.tcp(t, "A"), events.PolicyDenied)
				n.wantEgressDrop(podB, back.tcp(t, "FA"), events.PolicyDenied)
				n.wantEgressDrop(podA, open.tcp(t, "A"), events.PolicyDenied)
				n.wantFlows(family, 0, 1)
				n.forget(family)
				if t.Failed() {
					t.Fatalf("%s, answer %v", name, answer)
				}
			}
		}
	})
}

// forget deletes all established flows.
func (n *node) forget(family int) {
	n.t.Helper()
	if family == 6 {
		clearMap[bpf.CtKey6](n.t, n, bpf.MapCtEst6, func(bpf.CtKey6) bool { return true })
		return
	}
	clearMap[bpf.CtKey4](n.t, n, bpf.MapCtEst4, func(bpf.CtKey4) bool { return true })
}

// A connection that is denied after it was established is not created in the reverse direction by a retransmission of its responder, even if the responder
// may open connections to the initiator. A SYN of the responder does create a flow.
func TestPrivilegedConntrack_DeniedFlow_ResponderDoesNotReverse(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = bpf.PolicyAllowAll, 0 })
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.closed(podB)
		for range 2 {
			n.wantEgressDrop(podB, back.tcp(t, "A"), events.PolicyDenied)
			n.wantEgressDrop(podA, open.tcp(t, "A"), events.PolicyDenied)
		}
		n.passes(podB, back.tcp(t, "S"), actRedirect)
		n.passes(podA, open.tcp(t, "SA"), actRedirect)
	})
}

// The id of a deleted endpoint belongs to no endpoint, or to another one.
func TestPrivilegedConntrack_StaleEndpoint(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.update(bpf.MapEndpointFacts, uint32(podB.id), bpf.EndpointFacts{Revision: 99})
		n.wantEgressDrop(podA, open.tcp(t, "A"), events.NoEndpoint)

		moved := podB.facts()
		moved.Ipv4, moved.Ipv6, moved.Revision = bpf.IPv4Word(podB.ipv4.Next()), bpf.IPv6Bytes(podB.ipv6.Next()), 100
		n.update(bpf.MapEndpointFacts, uint32(podB.id), moved)
		n.wantEgressDrop(podA, open.tcp(t, "A"), events.StaleIP)
		n.wantFlows(family, 0, 1) // the collector removes it
	})
}

// The memory of a deleted flow is reused for another flow immediately. An entry without the check of its key is ignored.
func TestPrivilegedConntrack_CheckMismatch(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Check ^= 2 })
		n.wantEgressDrop(podB, back.tcp(t, "A"), events.PolicyDenied)
		n.wantEgressDrop(podA, open.tcp(t, "A"), events.PolicyDenied) // the policies do not allow the other direction
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.wantFlows(family, 0, 1)
	})
}

// A SYN from the responder, or on a closing connection, starts another connection with the same ports.
func TestPrivilegedConntrack_AnotherConnection(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)

		// Pod a allows no ingress. The connection that the dropped packet would have replaced continues.
		n.wantEgressDrop(podB, back.tcp(t, "S"), events.PolicyDenied)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		n.wantFlows(family, 0, 1)

		// The initiator starts again on a closing connection: the current policies apply, with the timeout of a new connection.
		n.passes(podB, back.tcp(t, "FA"), actRedirect)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.wantTimeout("est", family, lifeSYN)
		if f := n.onlyFlow("est", family); f.Packets != 1 || f.Flags&^bpf.CtInitiatorSecond != 0 {
			t.Errorf("flow %+v", f)
		}
		// A retransmitted SYN starts no connection.
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		if f := n.onlyFlow("est", family); f.Packets != 2 {
			t.Errorf("flow %+v", f)
		}

		// When both allow each other's ingress, the responder may open a connection too.
		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress = bpf.PolicyAllowAll })
		n.passes(podB, back.tcp(t, "S"), actRedirect)
		if f := n.onlyFlow("est", family); f.Initiator != podB.id || f.Responder != podA.id {
			t.Errorf("flow %+v", f)
		}
	})
}

// Replies to a flow that was opened through the node's stack pass through the stack, whatever the responder is.
func TestPrivilegedConntrack_ViaStack(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.update(bpf.MapIpcache, bpf.NewAddrKey(podA.addr(family)), bpf.IpcacheEntry{Identity: podA.facts().Identity})
		n.ingress(podB, rule{kind: bpf.PolicyIdentity, identity: podA.facts().Identity})
		// Pod a's packet for a service reaches pod b through the stack, which has translated it.
		arrives := received(podB, podA.addr(family), podB.addr(family)).ports(5000, 80)
		n.arrives(podB, ifPodA, arrives.tcp(t, "S"))
		back := arrives.back(podB)
		n.passes(podB, back.tcp(t, "SA"), actOK)
		n.arrives(podB, ifPodA, arrives.tcp(t, "A"))
		n.passes(podB, back.tcp(t, "A"), actOK)
		// The same holds when the flow is evaluated again.
		n.facts(podB, func(*bpf.EndpointFacts) {})
		n.passes(podB, back.tcp(t, "A"), actOK)
		if f := n.onlyFlow("est", family); f.Flags&bpf.CtViaStack == 0 || f.Initiator != 0 || f.InitiatorRevision != 0 || f.InitiatorIdentity != podA.facts().Identity {
			t.Errorf("flow %+v", f)
		}
	})
}

// Protocols without ports have flows too, identified by addresses alone.
func TestPrivilegedConntrack_OtherProtocols(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.closed(podA)
		esp := sent(podA, podA.addr(family), podB.addr(family))
		n.passes(podA, esp.raw(t, 50), actRedirect)
		n.passes(podB, esp.back(podB).raw(t, 50), actRedirect)
		n.wantEgressDrop(podB, esp.back(podB).raw(t, 47), events.PolicyDenied)
	})
}

func TestCtTicks(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]uint32{0: 0, 1: 1, 8000 * time.Second: 7451, time.Minute: 56, 10 * time.Second: 10} {
		if got := bpf.CtTicks(d); got != want || bpf.CtDuration(got) < d {
			t.Errorf("%s is %d ticks, want %d, and back %s", d, got, want, bpf.CtDuration(got))
		}
	}
	if !bpf.CtExpired(&bpf.CtEntry{Expires: 5}, 5) || bpf.CtExpired(&bpf.CtEntry{Expires: 6}, 5) || bpf.CtExpired(&bpf.CtEntry{Expires: 1}, 0xffffffff) {
		t.Error("a flow ends at another time than its own")
	}
	specs := map[string]uint32{bpf.VariableCtTCPTimeout: 7451, bpf.VariableCtTCPSynTimeout: 56, bpf.VariableCtTCPCloseTimeout: 10,
		bpf.VariableCtAnyTimeout: 56, bpf.VariableCtShare: 131072 / 4, bpf.VariableVerdictEvents: 1, bpf.VariablePolicyCIDRNodes: 0}
	for _, program := range []string{bpf.PodEgress, bpf.PodIngress} {
		spec, err := bpf.Load(program)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range specs {
			var got uint32
			if err := spec.Variables[name].Get(&got); err != nil || got != want {
				t.Errorf("%s: %s is %d, want %d: %v", program, name, got, want, err)
			}
		}
	}
}

// A key and its entry determine the initiator of the flow.
func TestPrivilegedConntrack_NamesInitiatorAndResponder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ask := func(p, to pod, family int) {
		n.run(bpf.PodEgress, p.ifindex, sent(p, p.addr(family), to.addr(family)).ports(5000, 80).tcp(t, "S"))
	}
	for _, c := range []struct{ from, to pod }{{podA, podB}, {podB, podA}} {
		for _, family := range families {
			clearMaps(t, n, family)
			ask(c.from, c.to, family)
			var got bpf.CtFlow
			if family == 4 {
				var k bpf.CtKey4
				e := n.onlyFlow("new", 4)
				nextKey(t, n.maps[bpf.MapCtNew4], &k)
				got = bpf.NewCtFlow4(&k, &e)
			} else {
				var k bpf.CtKey6
				e := n.onlyFlow("new", 6)
				nextKey(t, n.maps[bpf.MapCtNew6], &k)
				got = bpf.NewCtFlow6(&k, &e)
			}
			want := bpf.CtFlow{Initiator: netip.AddrPortFrom(c.from.addr(family), 5000), Responder: netip.AddrPortFrom(c.to.addr(family), 80), Protocol: protoTCP}
			if got != want {
				t.Errorf("flow %+v, want %+v", got, want)
			}
		}
	}
}

func nextKey(t *testing.T, m *ebpf.Map, key any) {
	t.Helper()
	if err := m.NextKey(nil, key); err != nil {
		t.Fatal(err)
	}
}

// clearMaps deletes all flows of a family.
func clearMaps(t *testing.T, n *node, family int) {
	t.Helper()
	for _, class := range []string{"new", "est"} {
		if family == 4 {
			clearMap[bpf.CtKey4](t, n, ctMap(class, 4), func(bpf.CtKey4) bool { return true })
		} else {
			clearMap[bpf.CtKey6](t, n, ctMap(class, 6), func(bpf.CtKey6) bool { return true })
		}
	}
}
