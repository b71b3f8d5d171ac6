package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// fromTunnel sends a packet to pod a as the stack does after overlay_ingress, with the mark of a sender's identity.
func (n *node) fromTunnel(packet []byte, identity uint32) outcome {
	n.t.Helper()
	return n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifTunnel, Mark: markOf(identity)}, packet)
}

// identityOther is another identity that policies know.
const identityOther = 0x4720

// allowVNIIdentity allows ingress of pod a from identityFromVNI and from the world, and not from identityOther.
func (n *node) allowVNIIdentity() {
	n.t.Helper()
	n.policiesKnow(identityFromVNI, identityOther)
	n.ingress(podA, rule{kind: bpf.PolicyIdentity, identity: identityFromVNI}, rule{kind: bpf.PolicyIdentity, identity: 2})
}

func TestPrivilegedPodIngress_IdentityByVNI(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		unknown, known := distantPod[family].Next(), distantPod[family]
		port := uint16(5000)
		for name, c := range map[string]struct {
			from          netip.Addr
			ifindex, mark uint32
			reason        events.Reason // 0 when it passes
			identity      uint32
		}{
			"allowed":                      {unknown, ifTunnel, markOf(identityFromVNI), 0, identityFromVNI},
			"allowed, with foreign marks":  {unknown, ifTunnel, markOf(identityFromVNI) | 0xf000, 0, identityFromVNI},
			"another pod":                  {unknown, ifTunnel, markOf(identityOther), events.PolicyDenied, identityOther},
			"unknown":                      {unknown, ifTunnel, markOf(0), events.UnknownIdentity, 0},
			"no longer known to policies":  {unknown, ifTunnel, markOf(0x4730), events.UnknownIdentity, 0},
			"the host":                     {unknown, ifTunnel, markOf(1), events.UnknownIdentity, 0},
			"the world":                    {unknown, ifTunnel, markOf(2), events.UnknownIdentity, 0},
			"a node":                       {unknown, ifTunnel, markOf(6), events.UnknownIdentity, 0},
			"the mark of another program":  {unknown, ifTunnel, markOf(identityFromVNI) &^ 0xf00, events.UnknownIdentity, 0},
			"the mark is not from the VNI": {unknown, ifUplink, markOf(identityFromVNI), events.UnknownIdentity, 0},
			"ipcache has another identity": {known, ifTunnel, markOf(identityFromVNI), events.PolicyDenied, identityDistant},
		} {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				port++
				got := n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: c.ifindex, Mark: c.mark},
					outsideTo(podA, c.from, port, 80).tcp(t, "S"))
				event := n.event()
				switch {
				case c.reason == 0 && (got.action != actOK || n.onlyFlow("new", family).InitiatorIdentity != c.identity):
					t.Errorf("action %d, event %+v, flow %+v", int32(got.action), event, n.onlyFlow("new", family))
				case c.reason != 0 && (got.action != actShot || event == nil || event.Reason != c.reason || event.SourceIdentity != c.identity):
					t.Errorf("action %d, event %+v, want reason %q and identity %d", int32(got.action), event, c.reason, c.identity)
				}
				clearMaps(t, n, family)
			})
		}
	})
}

// A VNI above the numbers of the cluster does not stand for the identity in its lower 16 bits: the sender is unknown, which is not the world. No VNI has a
// local scope, because the scope is in bits 24 to 31 of an identity.
func TestPrivilegedVNI_AboveNumbersOfCluster_SenderIsUnknown(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		unknown, pod := distantPod[family].Next(), podA.addr(family)
		arrives := func(vni uint32, sport uint16) outcome {
			t.Helper()
			n.arriveAs(outerHeader{from: otherNode[4], vni: vni})
			in := inside(unknown, pod).ports(sport, 80).tcp(t, "S")
			got := n.runSkb(tunnelledAs, skBuff{Ifindex: ifTunnel}, in)
			n.wantPacket(got, actUnspec, in)
			return n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifTunnel, Mark: got.mark}, outsideTo(podA, unknown, sport, 80).tcp(t, "S"))
		}
		for i, vni := range []uint32{0x10000 | identityFromVNI, 0x800000 | identityFromVNI, 0xff0000 | identityFromVNI, 0x20000 | 2} {
			n.wantDropReason(arrives(vni, uint16(5000+i)), events.UnknownIdentity)
		}
		n.did(arrives(identityFromVNI, 6000), actOK)
		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = bpf.PolicyAllowAll, 0 })
		n.did(arrives(0x10000|identityFromVNI, 6001), actOK) // no policy needs the identity
	})
}

// openVNIFlow opens a connection from a pod that ipcache does not contain to pod a.
func (n *node) openVNIFlow(family int) (in, back flow) {
	n.t.Helper()
	in = outsideTo(podA, distantPod[family].Next(), 5000, 80)
	back = in.back(podA)
	n.did(n.fromTunnel(in.tcp(n.t, "S"), identityFromVNI), actOK)
	n.passes(podA, back.tcp(n.t, "SA"), actOK)
	n.did(n.fromTunnel(in.tcp(n.t, "A"), identityFromVNI), actOK)
	n.wantFlows(family, 0, 1)
	if f := n.onlyFlow("est", family); f.InitiatorIdentity != identityFromVNI || f.Flags&bpf.CtByVNI == 0 {
		n.t.Errorf("flow %+v", f)
	}
	return in, back
}

// Another pod that gets the address of the sender cannot continue its connection, although ipcache contains neither.
func TestPrivilegedVNI_AnotherSenderWithTheSameAddress(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		in, back := n.openVNIFlow(family)
		n.passes(podA, back.tcp(t, "A"), actOK)
		for identity, reason := range map[uint32]events.Reason{identityOther: events.PolicyDenied, 0: events.UnknownIdentity} {
			n.wantDropReason(n.fromTunnel(in.tcp(t, "A"), identity), reason)
			n.wantEgressDrop(podA, back.tcp(t, "A"), reason)
			n.wantFlows(family, 0, 1)

			n.did(n.fromTunnel(in.tcp(t, "A"), identityFromVNI), actOK)
			n.passes(podA, back.tcp(t, "A"), actOK)
			n.wantFlows(family, 0, 1)
		}
		// Without its mark.
		n.wantDropReason(n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifTunnel}, in.tcp(t, "A")), events.UnknownIdentity)
	})
}

// A packet of a pod to a peer that ipcache does not contain is evaluated with the identity of the peer's packets.
func TestPrivilegedVNI_EvaluatedAgainByPacketOfPod(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		in, back := n.openVNIFlow(family)
		n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
		n.passes(podA, back.tcp(t, "A"), actOK)
		n.facts(podA, func(*bpf.EndpointFacts) {})
		n.passes(podA, back.tcp(t, "A"), actOK)
		if f := n.onlyFlow("est", family); f.InitiatorIdentity != identityFromVNI || f.Flags&bpf.CtByVNI == 0 {
			t.Errorf("flow %+v", f)
		}
		// Policies no longer know the identity.
		n.policiesKnow()
		n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
		n.wantEgressDrop(podA, back.tcp(t, "A"), events.UnknownIdentity)
		n.wantDropReason(n.fromTunnel(in.tcp(t, "A"), 0), events.UnknownIdentity)
		n.policiesKnow(identityFromVNI)
		n.did(n.fromTunnel(in.tcp(t, "A"), identityFromVNI), actOK)
		n.passes(podA, back.tcp(t, "A"), actOK)
		// ipcache contains the pod.
		n.update(bpf.MapIpcache, bpf.NewAddrKey(in.src), bpf.IpcacheEntry{Identity: identityOther, Node: otherID})
		n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
		n.wantEgressDrop(podA, back.tcp(t, "A"), events.PolicyDenied)
		n.wantDropReason(n.fromTunnel(in.tcp(t, "A"), identityOther), events.PolicyDenied)
		n.update(bpf.MapIpcache, bpf.NewAddrKey(in.src), bpf.IpcacheEntry{Identity: identityFromVNI, Node: otherID})
		n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
		n.passes(podA, back.tcp(t, "A"), actOK)
		if f := n.onlyFlow("est", family); f.InitiatorIdentity != identityFromVNI || f.Flags&bpf.CtByVNI != 0 {
			t.Errorf("flow %+v", f)
		}
		// ipcache no longer contains the pod, and its previous identity differs from that of the pod's packets.
		n.update(bpf.MapIpcache, bpf.NewAddrKey(in.src), bpf.IpcacheEntry{Node: otherID})
		n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
		n.wantEgressDrop(podA, back.tcp(t, "A"), events.UnknownIdentity)
		n.did(n.fromTunnel(in.tcp(t, "A"), identityFromVNI), actOK)
		n.passes(podA, back.tcp(t, "A"), actOK)
	})
}

// If a node's packets arrive through the tunnel, replies use the tunnel, whatever source address the node uses; if its packets arrive without the tunnel,
// replies do too.
func TestPrivilegedVNI_RepliesToNodesUseTunnel(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.update(bpf.MapOverlay, uint32(0), bpf.Overlay{Ifindex: ifTunnel, Way: ifHost})
		n.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[family]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
		port := uint16(5000)
		for name, c := range map[string]struct{ ifindex, action uint32 }{"through the tunnel": {ifTunnel, actRedirect}, "without it": {ifUplink, actOK}} {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				port++
				in := outsideTo(podA, otherNode[family], port, 80)
				back := in.back(podA)
				arrives := func(flags string) {
					t.Helper()
					n.did(n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: c.ifindex, Mark: markOf(6)}, in.tcp(t, flags)), actOK)
				}
				arrives("S")
				n.passes(podA, back.tcp(t, "SA"), c.action)
				arrives("A")
				n.wantFlows(family, 0, 1)
				n.passes(podA, back.tcp(t, "A"), c.action)
				n.raise(bpf.MapEpochShards, bpf.EpochShard(in.src))
				n.passes(podA, back.tcp(t, "A"), c.action)
				n.passes(podA, back.tcp(t, "FA"), c.action)
				if through := n.onlyFlow("est", family).Flags&bpf.CtByTunnel != 0; through != (c.action == actRedirect) {
					t.Errorf("flow %+v", n.onlyFlow("est", family))
				}
				clearMaps(t, n, family)
			})
		}
	})
}

// Replies of a connection that started through the tunnel pass through the stack after the tunnel was removed.
func TestPrivilegedVNI_TunnelRemoved_RepliesUseStack(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		in := outsideTo(podA, client[family], 5000, 80)
		n.arrives(podA, ifUplink, in.tcp(t, "S"))
		n.passes(podA, in.back(podA).tcp(t, "SA"), actOK)
		n.arrives(podA, ifUplink, in.tcp(t, "A"))
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Flags |= bpf.CtByTunnel })
		n.passes(podA, in.back(podA).tcp(t, "A"), actOK)
	})
}

// A pod can open connections to a pod that ipcache does not contain if its policy does not depend on the peer.
func TestPrivilegedVNI_UnknownResponder(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		to := distantPod[family].Next()
		open := sent(podA, podA.addr(family), to).ports(5000, 80)
		back := received(podA, to, podA.addr(family)).ports(80, 5000)
		n.passes(podA, open.tcp(t, "S"), actOK)
		n.did(n.fromTunnel(back.tcp(t, "SA"), identityOther), actOK)
		n.passes(podA, open.tcp(t, "A"), actOK)
		if f := n.onlyFlow("est", family); f.ResponderIdentity != identityOther || f.Flags&bpf.CtByVNI == 0 {
			t.Errorf("flow %+v", f)
		}
		n.did(n.fromTunnel(back.tcp(t, "A"), identityOther), actOK)
		// With an egress policy that names peers it cannot: the first packet has no VNI.
		n.egress(podA, rule{kind: bpf.PolicyIdentity, identity: identityFromVNI}, rule{kind: bpf.PolicyIdentity, identity: 2})
		n.wantEgressDrop(podA, open.ports(5001, 80).tcp(t, "S"), events.UnknownIdentity)
	})
}

// ICMP errors come from any router on the path, such as the other node, and belong to the flow of the inner packet.
func TestPrivilegedVNI_ICMPErrorsFromRouters(t *testing.T) {
	t.Parallel()
	onTunnel(t, func(t *testing.T, n *node, family int) {
		n.allowVNIIdentity()
		in, back := n.openVNIFlow(family)
		router := received(podA, otherNode[family], podA.addr(family))
		n.did(n.fromTunnel(router.unreachable(t, back.tcp(t, "A")), 6), actOK)
		n.wantDropReason(n.fromTunnel(router.unreachable(t, back.ports(80, 5001).tcp(t, "A")), 6), events.UnknownFlow)
		n.did(n.fromTunnel(in.tcp(t, "A"), identityFromVNI), actOK)
	})
}
