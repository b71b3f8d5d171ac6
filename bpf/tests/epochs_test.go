package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// raise increments one slot of a map of epochs.
func (n *node) raise(name string, slot uint32) {
	n.t.Helper()
	var now uint32
	if err := n.maps[name].Lookup(slot, &now); err != nil {
		n.t.Fatal(err)
	}
	n.update(name, slot, now+1)
}

// allowedToFar assigns the identity identityFar to a remote peer; pod a may send only to this identity. It returns the peer and a request to it.
func allowedToFar(n *node, family int) (peer netip.Addr, request flow) {
	peer = outside[family]
	n.update(bpf.MapIpcache, bpf.NewAddrKey(peer), bpf.IpcacheEntry{Identity: identityFar})
	n.egress(podA, rule{kind: bpf.PolicyIdentity, identity: identityFar})
	n.closed(podA)
	return peer, sent(podA, podA.addr(family), peer).ports(5000, 53)
}

// A flow with a remote peer is evaluated again when the identity of the peer's address changes.
func TestPrivilegedConntrack_IdentityOfThePeerChanges(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		peer, ask := allowedToFar(n, family)
		answer := outsideTo(podA, peer, 53, 5000)
		n.passes(podA, ask.bytes(t), actOK)
		n.arrives(podA, ifUplink, answer.bytes(t))
		n.passes(podA, ask.bytes(t), actOK)
		n.update(bpf.MapIpcache, bpf.NewAddrKey(peer), bpf.IpcacheEntry{Identity: identityFar + 1})
		n.arrives(podA, ifUplink, answer.bytes(t)) // no epoch has changed yet
		n.raise(bpf.MapEpochShards, bpf.EpochShard(peer.Next()))
		n.arrives(podA, ifUplink, answer.bytes(t)) // the epoch of another address
		n.raise(bpf.MapEpochShards, bpf.EpochShard(peer))
		n.wantIngressDrop(podA, ifUplink, answer.bytes(t), events.PolicyDenied)
		n.wantEgressDrop(podA, ask.bytes(t), events.PolicyDenied)
		// The peer gets its previous identity again.
		n.update(bpf.MapIpcache, bpf.NewAddrKey(peer), bpf.IpcacheEntry{Identity: identityFar})
		n.raise(bpf.MapEpochs, bpf.EpochIPCache)
		n.arrives(podA, ifUplink, answer.bytes(t))
		n.wantFlows(family, 0, 1)
	})
}

// An agent of another generation increments slot 0 alone, and its successor starts with shards of 0: no sum of epochs equals one that was stored before.
func TestPrivilegedConntrack_EpochsOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		peer, ask := allowedToFar(n, family)
		n.raise(bpf.MapEpochShards, bpf.EpochShard(peer))
		n.passes(podA, ask.bytes(t), actOK)
		n.arrives(podA, ifUplink, outsideTo(podA, peer, 53, 5000).bytes(t))
		n.passes(podA, ask.bytes(t), actOK)
		n.update(bpf.MapIpcache, bpf.NewAddrKey(peer), bpf.IpcacheEntry{Identity: identityFar + 1})
		n.update(bpf.MapEpochShards, bpf.EpochShard(peer), uint32(0))
		n.raise(bpf.MapEpochs, bpf.EpochIPCache)
		n.wantEgressDrop(podA, ask.bytes(t), events.PolicyDenied)
	})
}

// The identities of addresses do not concern a flow between two pods of this node: a change of them does not evaluate it again.
func TestPrivilegedConntrack_LocalFlowsIgnoreAddresses(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.policy(policyID) // denies every flow that is evaluated
		n.raise(bpf.MapEpochs, bpf.EpochIPCache)
		for _, p := range []pod{podA, podB} {
			n.raise(bpf.MapEpochShards, bpf.EpochShard(p.addr(family)))
		}
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
	})
}
