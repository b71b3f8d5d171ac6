package policy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/podclaims"
	"github.com/waggle-net/waggle/pkg/policymap"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// peers tells the resolver of pods as peers, while a rule names ports of peers: which identities they may be known by, where, and
// what they call their ports. Those that name none count among the others of their identity.
//
// Endpoints of this node are known by their rows. Of pods elsewhere there is the word of a CiliumEndpoint: only addresses that ipcache
// believes to be its are opened by rules, otherwise whoever can write one could have any address opened. Denies must hold before
// ipcache's belief is in the kernel, so they do not wait for it: see [inputs.claimed]. Who was known by another identity, or is gone,
// is denied by it for [identityGrace] more, as the maps come behind the tables.
type peers struct {
	told bool // of all, since there is a rule that names ports of peers
	// unsettled are keys of which something else may hold without a change of their rows, and since when they are not known any more by
	// identities under which they are still denied.
	unsettled map[string]map[uint32]time.Time
	// misplaced are pods elsewhere with addresses that no pod of their node may have, as far as the nodes are known.
	misplaced map[string]bool
	nodes     *clusternodes.Follower // nil unless told: it takes memory for each node
	slots     map[uint16]slot        // what the datapath had of endpoints when this run began
	claims    *podclaims.Claims      // of pods elsewhere; nil unless told
}

func newPeers() peers {
	return peers{unsettled: map[string]map[uint32]time.Time{}, misplaced: map[string]bool{}}
}

// claim takes over the addresses of a pod elsewhere, and returns them.
func (p *peers) claim(o *cilium.Endpoint, gone bool) []netip.Addr {
	switch {
	case !p.told:
		return nil // all are read when one is told of
	case gone:
		p.claims.Delete(o)
	default:
		p.claims.Put(o)
	}
	return o.Addrs()
}

// An endpoint of this node has the key of its attachment, and a pod elsewhere "namespace/name": no attachment has a slash.
func isElsewhere(key string) bool { return strings.Contains(key, "/") }

// tellPeers tells of the pods of which something has changed.
func (in *inputs) tellPeers(txn statedb.ReadTxn, changed *statedb.WatchSet, keys map[string]bool, now time.Time) {
	p := &in.peers
	if !in.resolver.NamesPortsOfPeers() {
		if p.told {
			in.resolver.ForgetPods()
			p.nodes.Close()
			slots := p.slots
			in.peers = newPeers()
			in.peers.slots = slots
		}
		return
	}
	in.followNodes(txn, changed, keys)
	if !p.told {
		p.told = true
		for _, ep := range in.subjects {
			keys[ep.AttachmentID()] = true
		}
		p.claims = &podclaims.Claims{}
		for o := range in.Remote.All(txn) {
			p.claims.Put(o)
			keys[o.Key()] = true
		}
	}
	for key := range p.unsettled {
		keys[key] = true
	}
	for key := range keys {
		in.tell(txn, key, now)
		in.alive()
	}
}

// followNodes learns where pods may be, and adds those that were misplaced when that is something else now.
func (in *inputs) followNodes(txn statedb.ReadTxn, changed *statedb.WatchSet, keys map[string]bool) {
	p := &in.peers
	if p.nodes == nil {
		write := in.DB.WriteTxn(in.Nodes)
		follower, err := clusternodes.Follow(write, in.Nodes)
		write.Commit()
		if err != nil {
			panic(err) // the transaction holds the table
		}
		p.nodes, txn = follower, in.DB.ReadTxn() // of what was deleted before nothing is told
	}
	moved := false
	p.nodes.UpTo(txn, changed, func(_, _ *nodes.Node) { moved = true })
	if !moved {
		return
	}
	for key := range p.misplaced {
		keys[key] = true
	}
}

// tell tells of one pod: as whom it is known, and as whom it was a moment ago.
func (in *inputs) tell(txn statedb.ReadTxn, key string, now time.Time) {
	before := in.resolver.PodAs(key)
	var as []policymap.Pod
	if isElsewhere(key) {
		as = in.elsewherePeer(txn, key, before)
	} else {
		as = in.localPeer(txn, key)
	}
	var leaving map[uint32]time.Time
	for _, was := range before {
		since, left := in.peers.unsettled[key][was.Identity]
		switch {
		case !left && !was.DenyOnly:
			since = now
		case !left:
			continue // it was somebody's word, and is not any more
		}
		_, done := leaving[was.Identity]
		still := slices.ContainsFunc(as, func(p policymap.Pod) bool { return p.Identity == was.Identity && !p.DenyOnly })
		if done || still || now.Sub(since) >= identityGrace {
			continue
		}
		if addresses := in.nobodysElse(txn, key, was.Addresses); len(addresses) > 0 {
			as = append(as, policymap.Pod{Identity: was.Identity, Addresses: addresses, Ports: was.Ports, DenyOnly: true})
			if leaving == nil {
				leaving = map[uint32]time.Time{}
			}
			leaving[was.Identity] = since
		}
	}
	if delete(in.peers.unsettled, key); len(leaving) > 0 || len(as) > 1 && !isElsewhere(key) {
		in.peers.unsettled[key] = leaving
	}
	in.resolver.UpsertPod(key, as...)
}

// settleAgain says when some pod may have been forgotten by an identity that it had; 0 when there is none.
func (in *inputs) settleAgain(now time.Time) (again time.Duration) {
	for _, leaving := range in.peers.unsettled {
		next := lookAgain // what the datapath does is followed, too
		for _, since := range leaving {
			next = min(next, max(identityGrace-now.Sub(since), time.Millisecond))
		}
		if again == 0 || next < again {
			again = next
		}
	}
	return again
}

// localPeer is an endpoint of this node, by each identity that its row, its policy, the datapath or ipcache say that it has.
func (in *inputs) localPeer(txn statedb.ReadTxn, attachment string) (as []policymap.Pod) {
	ep, _, found := in.Endpoints.Get(txn, endpoints.ByAttachment(attachment))
	if !found {
		return nil
	}
	pod := policymap.Pod{Ports: portsOf(ep.Ports)}
	by := func(number uint32) {
		known := slices.ContainsFunc(as, func(p policymap.Pod) bool { return p.Identity == number })
		if !known && number != identity.Unknown {
			pod.Identity = number
			as = append(as, pod)
		}
	}
	for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if addr.IsValid() {
			pod.Addresses = append(pod.Addresses, addr)
		}
	}
	if of, found := identities.Of(txn, in.Of, ep.ID, attachment); found {
		by(of.Identity)
	}
	if row, found := endpointpolicies.Of(txn, in.Published, ep.ID, attachment); found {
		by(row.Identity)
	} else if s, had := in.peers.slots[ep.ID]; had && ep.Restored && int(s.ifindex) == ep.HostIfIndex {
		by(s.identity)
	}
	if f, _, found := in.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID)); found && int(f.IfIndex) == ep.HostIfIndex {
		by(f.Identity)
	}
	for _, addr := range pod.Addresses {
		if e, found := in.at(txn, addr); found && e.Source == ipcache.SourceLocal {
			by(e.Identity)
		}
	}
	return as
}

func (in *inputs) at(txn statedb.ReadTxn, addr netip.Addr) (*ipcache.Entry, bool) {
	e, _, found := in.IPCache.Get(txn, ipcache.ByPrefix(netip.PrefixFrom(addr, addr.BitLen())))
	return e, found
}

// elsewherePeer is a pod of another node: as its object and ipcache agree, as whom ipcache still knows it, and as whom it may
// become known.
func (in *inputs) elsewherePeer(txn statedb.ReadTxn, name string, before []*policymap.Pod) (as []policymap.Pod) {
	delete(in.peers.misplaced, name)
	o, _, found := in.Remote.Get(txn, cilium.EndpointByName(name))
	if !found || len(in.ofPod[name]) > 0 { // of one of this node its endpoint says more than its object
		return nil
	}
	ports := portsOf(o.Ports())
	add := func(number uint32, addr netip.Addr, denyOnly bool) {
		i := slices.IndexFunc(as, func(p policymap.Pod) bool { return p.Identity == number && p.DenyOnly == denyOnly })
		if i < 0 {
			i = len(as)
			as = append(as, policymap.Pod{Identity: number, Ports: ports, DenyOnly: denyOnly})
		}
		as[i].Addresses = append(as[i].Addresses, addr)
	}
	for _, addr := range o.Addrs() {
		e, known := in.at(txn, addr)
		switch {
		case known && in.believes(e, o, o.Identity()):
			add(o.Identity(), addr, false)
			continue
		case !in.claimed(txn, o, addr, e):
			continue
		case known && e.Identity != identity.Unknown && in.believes(e, o, e.Identity):
			add(e.Identity, addr, !slices.ContainsFunc(before, func(p *policymap.Pod) bool {
				return p.Identity == e.Identity && !p.DenyOnly && slices.Contains(p.Addresses, addr)
			}))
		}
		add(o.Identity(), addr, true)
	}
	return as
}

// believes tells whether ipcache knows an address by an identity because of this object, as far as can be told.
func (in *inputs) believes(e *ipcache.Entry, o *cilium.Endpoint, number uint32) bool {
	return e.Owner() == ipcache.OwnerCiliumEndpoints && e.Identity == number && e.Node() != "" && e.Node() == in.peers.nodes.HostOf(o)
}

// claimed tells whether an address may become that of a pod elsewhere, so that denies have to hold there: it is one of its node's pods,
// and neither ipcache nor an endpoint of this node says that it is somebody else's. An entry of a map denies an address to whoever has it,
// so a liar can have denied no more than addresses of pods that nobody has.
func (in *inputs) claimed(txn statedb.ReadTxn, o *cilium.Endpoint, addr netip.Addr, e *ipcache.Entry) bool {
	if o.Identity() < identity.ClusterMin || o.Identity() > identity.ClusterMax || !clusternodes.Usable(addr) ||
		e != nil && e.Owner() != ipcache.OwnerCiliumEndpoints {
		return false
	}
	all := in.peers.nodes
	host := all.HostOf(o)
	if host == in.Agent.NodeName {
		return false // of this node, and the endpoint is gone
	}
	if len(all.NodesOf(addr)) > 0 || !all.MayHold(host, addr) {
		in.peers.misplaced[o.Key()] = true
		return false
	}
	if _, _, local := in.Endpoints.Get(txn, endpoints.ByAddress(addr)); local {
		return false
	}
	for other := range in.peers.claims.At(addr) {
		if e != nil && other.Key() != o.Key() && in.believes(e, other, other.Identity()) {
			return false
		}
	}
	return true
}

// nobodysElse are the addresses of a pod, which it had, that nobody else has got since.
func (in *inputs) nobodysElse(txn statedb.ReadTxn, key string, addresses []netip.Addr) (list []netip.Addr) {
	for _, addr := range addresses {
		taken := false
		if ep, _, found := in.Endpoints.Get(txn, endpoints.ByAddress(addr)); found {
			taken = ep.AttachmentID() != key
		} else if isElsewhere(key) {
			for other := range in.peers.claims.At(addr) {
				taken = taken || other.Key() != key
			}
		}
		if !taken {
			list = append(list, addr)
		}
	}
	return list
}

// claimants adds the pods elsewhere that claim an address.
func (in *inputs) claimants(addr netip.Addr, keys map[string]bool) {
	if !in.peers.told {
		return // all are told of when one is
	}
	for o := range in.peers.claims.At(addr) {
		keys[o.Key()] = true
	}
}
