package policymaps

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/podclaims"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// peers gives pods as possible peers to the resolver, while a rule names ports of peers: the identities and addresses by which each pod may be known, and the
// names of its ports. A pod without port names counts among the pods of its identity.
//
// Endpoints of this node are described by their rows, pods on other nodes by CiliumEndpoints. Rules allow only the addresses of a CiliumEndpoint that ipcache
// accepts, because otherwise every user who can write CiliumEndpoints could open any address. Denies do not wait for ipcache, because they must apply before
// the kernel has its entry: see [inputs.claimed]. A pod that had another identity, or that is deleted, is denied under the former identity for another
// [identityGrace], because the maps are written after the tables.
type peers struct {
	loaded bool // whether the resolver has all pods, because a rule names ports of peers
	// unsettled has the keys of pods that may change without a change of their rows: each round evaluates them, and each change of endpoint-facts begins a
	// round. The value has the former identities under which a pod is still denied, and the time since which it no longer has them.
	unsettled map[string]map[uint32]time.Time
	// unaccepted has the pods on other nodes with addresses that ipcache does not accept as theirs. Whether denies apply to these depends on the known nodes.
	unaccepted map[string]bool
	nodes      *clusternodes.Follower // nil unless enabled: it takes memory for each node
	claims     *podclaims.Claims      // addresses of pods on other nodes; nil unless enabled
}

func newPeers() peers {
	return peers{unsettled: map[string]map[uint32]time.Time{}, unaccepted: map[string]bool{}}
}

// claim records the addresses of a pod on another node, and returns its previous and its current ones.
func (p *peers) claim(o *cilium.Endpoint, gone bool) (addrs []netip.Addr) {
	var old *cilium.Endpoint
	switch {
	case !p.loaded:
		return nil // [inputs.updatePeers] reads all pods when a rule names ports of peers
	case gone:
		old = p.claims.Delete(o)
	default:
		old, addrs = p.claims.Put(o), o.Addrs()
	}
	if old != nil {
		addrs = append(addrs, old.Addrs()...)
	}
	return addrs
}

// isRemotePod reports whether a key is the key of a pod on another node, "namespace/name". The key of an endpoint of this node is its attachment, which
// contains no slash.
func isRemotePod(key string) bool { return strings.Contains(key, "/") }

// updatePeers updates the pods with the given keys in the resolver, and the unsettled pods. It removes all pods when no rule names ports of peers.
func (in *inputs) updatePeers(txn statedb.ReadTxn, changed *statedb.WatchSet, keys map[string]bool, now time.Time) {
	p := &in.peers
	if !in.resolver.NamesPortsOfPeers() {
		if p.loaded {
			in.resolver.ForgetPods()
			p.nodes.Close()
			in.peers = newPeers()
		}
		return
	}
	in.followNodes(txn, changed, keys)
	if !p.loaded {
		p.loaded = true
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
		in.updatePeer(txn, key, now)
		in.alive()
	}
}

// followNodes follows the nodes and so the addresses that pods may have. After a change it adds the keys of the pods with unaccepted addresses. A change of the
// node of an accepted address changes its row in ipcache.
func (in *inputs) followNodes(txn statedb.ReadTxn, changed *statedb.WatchSet, keys map[string]bool) {
	p := &in.peers
	if p.nodes == nil {
		write := in.DB.WriteTxn(in.Nodes)
		follower, err := clusternodes.Follow(write, in.Nodes)
		write.Commit()
		if err != nil {
			panic(err) // the transaction holds the table
		}
		p.nodes, txn = follower, in.DB.ReadTxn() // the follower does not report earlier deletions, so use a snapshot without the deleted rows
	}
	moved := false
	p.nodes.UpTo(txn, changed, func(_, _ *nodes.Node) { moved = true })
	if !moved {
		return
	}
	for key := range p.unaccepted {
		keys[key] = true
	}
}

// updatePeer updates one pod in the resolver: with its identities, and with the former identities under which it is still denied.
func (in *inputs) updatePeer(txn statedb.ReadTxn, key string, now time.Time) {
	before := in.resolver.PodAs(key)
	var as []policycompiler.Pod
	if isRemotePod(key) {
		as = in.remotePeer(txn, key, before)
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
			continue // ipcache never accepted this claim, so it has no grace period
		}
		_, done := leaving[was.Identity]
		still := slices.ContainsFunc(as, func(p policycompiler.Pod) bool { return p.Identity == was.Identity && !p.DenyOnly })
		if done || still || now.Sub(since) >= identityGrace {
			continue
		}
		if addresses := in.unownedAddresses(txn, key, was.Addresses); len(addresses) > 0 {
			as = append(as, policycompiler.Pod{Identity: was.Identity, Addresses: addresses, Ports: was.Ports, DenyOnly: true})
			if leaving == nil {
				leaving = map[uint32]time.Time{}
			}
			leaving[was.Identity] = since
		}
	}
	if delete(in.peers.unsettled, key); len(leaving) > 0 || len(as) > 1 && !isRemotePod(key) {
		in.peers.unsettled[key] = leaving
	}
	in.resolver.UpsertPod(key, as...)
}

// settleAgain returns the delay after which the first grace period of an unsettled pod ends; 0 if there is none.
func (in *inputs) settleAgain(now time.Time) (again time.Duration) {
	for _, leaving := range in.peers.unsettled {
		for _, since := range leaving {
			again = sooner(again, max(identityGrace-now.Sub(since), time.Millisecond))
		}
	}
	return again
}

// localPeer returns an endpoint of this node under each identity that its row, its published policy, the datapath or ipcache has for it.
func (in *inputs) localPeer(txn statedb.ReadTxn, attachment string) (as []policycompiler.Pod) {
	ep, _, found := in.Endpoints.Get(txn, endpoints.ByAttachment(attachment))
	if !found {
		return nil
	}
	pod := policycompiler.Pod{Ports: portsOf(ep.Ports)}
	by := func(number uint32) {
		known := slices.ContainsFunc(as, func(p policycompiler.Pod) bool { return p.Identity == number })
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
	} else if s, had := in.previous.slot(ep); had {
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

// remotePeer returns a pod of another node under the identity on which its object and ipcache agree, under the identity that ipcache still has for it, and
// under the identity that it may get.
func (in *inputs) remotePeer(txn statedb.ReadTxn, name string, before []*policycompiler.Pod) (as []policycompiler.Pod) {
	delete(in.peers.unaccepted, name)
	o, _, found := in.Remote.Get(txn, cilium.EndpointByName(name))
	if !found || len(in.ofPod[name]) > 0 { // localPeer describes pods of this node
		return nil
	}
	ports := portsOf(o.Ports())
	add := func(number uint32, addr netip.Addr, denyOnly bool) {
		i := slices.IndexFunc(as, func(p policycompiler.Pod) bool { return p.Identity == number && p.DenyOnly == denyOnly })
		if i < 0 {
			i = len(as)
			as = append(as, policycompiler.Pod{Identity: number, Ports: ports, DenyOnly: denyOnly})
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
			add(e.Identity, addr, !slices.ContainsFunc(before, func(p *policycompiler.Pod) bool {
				return p.Identity == e.Identity && !p.DenyOnly && slices.Contains(p.Addresses, addr)
			}))
		}
		add(o.Identity(), addr, true)
	}
	return as
}

// believes reports whether ipcache has an identity for an address because of this object, as far as the entry shows its origin.
func (in *inputs) believes(e *ipcache.Entry, o *cilium.Endpoint, number uint32) bool {
	return e.Owner() == ipcache.OwnerCiliumEndpoints && e.Identity == number && e.Node() != "" && e.Node() == in.peers.nodes.HostOf(o)
}

// claimed reports whether a pod on another node may get an address, so that denies must apply to the address: the pod's node may have it, and neither ipcache
// nor an endpoint of this node assigns it to another owner. An entry about an address denies whichever pod has it. So a false claim can at most deny
// addresses of pods that are not in use.
func (in *inputs) claimed(txn statedb.ReadTxn, o *cilium.Endpoint, addr netip.Addr, e *ipcache.Entry) bool {
	if o.Identity() < identity.ClusterMin || o.Identity() > identity.ClusterMax || !clusternodes.Usable(addr) ||
		e != nil && e.Owner() != ipcache.OwnerCiliumEndpoints {
		return false
	}
	in.peers.unaccepted[o.Key()] = true
	all := in.peers.nodes
	host := all.HostOf(o)
	if host == in.Agent.NodeName {
		return false // a pod of this node whose endpoint is deleted
	}
	if len(all.NodesOf(addr)) > 0 || !all.MayHost(host, addr) {
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

// unownedAddresses returns the former addresses of a pod that no other endpoint or pod has now.
func (in *inputs) unownedAddresses(txn statedb.ReadTxn, key string, addresses []netip.Addr) (list []netip.Addr) {
	for _, addr := range addresses {
		taken := false
		if ep, _, found := in.Endpoints.Get(txn, endpoints.ByAddress(addr)); found {
			taken = ep.AttachmentID() != key
		} else if isRemotePod(key) {
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

// claimants adds the keys of the pods on other nodes that claim an address.
func (in *inputs) claimants(addr netip.Addr, keys map[string]bool) {
	if !in.peers.loaded || !addr.IsValid() {
		return // [inputs.updatePeers] reads all pods when a rule names ports of peers
	}
	for o := range in.peers.claims.At(addr) {
		keys[o.Key()] = true
	}
}
