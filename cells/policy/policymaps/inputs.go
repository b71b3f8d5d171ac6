package policymaps

import (
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// identityGrace is the grace period of a deleted identity in the policies. A peer may still have the identity in the maps, because they are written after the
// tables.
const identityGrace = 10 * time.Second

// inputs passes every change of the tables from which policies are compiled to the resolver. It is not safe for concurrent use.
type inputs struct {
	params
	resolver *policycompiler.Resolver
	alive    func()       // reports progress, see [controller]
	previous *previousRun // of the controller

	kubernetes *changefeed.Feed[*k8s.NetworkPolicy]
	cilium     *changefeed.Feed[*cilium.Policy]
	cidrGroups *changefeed.Feed[*cilium.CIDRGroup]
	identities *changefeed.Feed[*identities.Identity]
	endpoints  *changefeed.Feed[*endpoints.Endpoint]
	pods       *changefeed.Feed[*k8s.Pod]
	namespaces *changefeed.Feed[*k8s.Namespace]
	remote     *changefeed.Feed[*cilium.Endpoint]
	ipcache    *changefeed.Feed[*ipcache.Entry]
	of         *changefeed.Feed[*identities.EndpointIdentity]
	facts      *changefeed.Feed[*bpfendpoints.Facts]

	marked       endpointfeed.Marks // endpoints that have changed since a round evaluated them
	all          bool               // the next round must evaluate all endpoints
	policies     map[policy.Ref]*policy.Policy
	unshown      map[policy.Ref]bool // policies whose row in the table policies may be outdated
	groups       policy.CIDRGroups
	refer        map[string]*policy.Policy // policies that refer to groups
	unreadGroups wait                      // after the start, for groups and Services that cannot be read
	copied       wait                      // for the lists of groups and Services, while they are known from the copy on disk only
	known        map[uint32]bool           // identities that exist or may still be in use
	arrived      []uint32                  // added identities that are not announced yet; some may be deleted again
	knownTo      statedb.Revision          // revision of the table identities up to which changes are read
	leaving      map[uint32]time.Time      // deleted identities, and the time of their deletion
	forgetAt     time.Time                 // when the next of them may be removed; zero if unknown
	subjects     map[uint16]*endpoints.Endpoint
	ofPod        map[string]map[uint16]bool // endpoints of a pod, by "namespace/name"
	env          policy.Environment
	listed       bool // pods and namespaces come from their source, not from the copy on disk
	catchUp      catchUp
	peers        peers
	services     serviceIndex
	// ofPeers has the channels of the tables that only rules with named ports of peers need.
	ofPeers *statedb.WatchSet
}

// newInputs subscribes to the tables. The first [inputs.read] gives all existing rows to the resolver.
func newInputs(p params) (in *inputs, err error) {
	in = &inputs{params: p, resolver: policycompiler.New(p.Options), policies: map[policy.Ref]*policy.Policy{}, unshown: map[policy.Ref]bool{}, groups: policy.CIDRGroups{},
		refer: map[string]*policy.Policy{}, known: map[uint32]bool{},
		leaving: map[uint32]time.Time{}, subjects: map[uint16]*endpoints.Endpoint{}, ofPod: map[string]map[uint16]bool{}, peers: newPeers(),
		marked: endpointfeed.Marks{}}
	in.services = newServiceIndex(&in.Inputs)
	txn := p.DB.WriteTxn(p.KubernetesPolicies, p.CiliumPolicies, p.CIDRGroups, p.Services, p.Slices, p.Identities, p.Endpoints, p.Pods, p.Namespaces, p.Remote, p.IPCache, p.Of, p.Facts)
	defer txn.Commit()
	var errs [13]error
	in.kubernetes, errs[0] = changefeed.Follow(txn, p.KubernetesPolicies)
	in.cilium, errs[1] = changefeed.Follow(txn, p.CiliumPolicies)
	in.identities, errs[2] = changefeed.Follow(txn, p.Identities)
	in.endpoints, errs[3] = changefeed.Follow(txn, p.Endpoints)
	in.remote, errs[4] = changefeed.Follow(txn, p.Remote)
	in.ipcache, errs[5] = changefeed.Follow(txn, p.IPCache)
	in.of, errs[6] = changefeed.Follow(txn, p.Of)
	in.pods, errs[7] = changefeed.Follow(txn, p.Pods)
	in.namespaces, errs[8] = changefeed.Follow(txn, p.Namespaces)
	in.facts, errs[9] = changefeed.Follow(txn, p.Facts)
	in.cidrGroups, errs[10] = changefeed.Follow(txn, p.CIDRGroups)
	in.services.feed, errs[11] = changefeed.Follow(txn, p.Services)
	in.services.slices, errs[12] = changefeed.Follow(txn, p.Slices)
	return in, errors.Join(errs[:]...)
}

func (in *inputs) close() {
	in.kubernetes.Close()
	in.cilium.Close()
	in.cidrGroups.Close()
	in.services.feed.Close()
	in.services.slices.Close()
	in.identities.Close()
	in.endpoints.Close()
	in.pods.Close()
	in.namespaces.Close()
	in.remote.Close()
	in.ipcache.Close()
	in.of.Close()
	in.facts.Close()
	in.peers.nodes.Close()
}

// read applies the changes up to a snapshot. It adds channels to changed that close after further changes.
func (in *inputs) read(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) {
	defer in.releaseSnapshot()
	allServices := in.readEnvironment(txn, changed)
	follow(in, txn, changed, in.kubernetes, func(o *k8s.NetworkPolicy, gone bool) {
		in.policy(policy.FromKubernetes(o, in.env), gone || !in.Config.Kubernetes)
	})
	follow(in, txn, changed, in.cilium, func(o *cilium.Policy, gone bool) {
		in.policy(policy.FromCilium(o, in.env), gone || !in.Config.Cilium)
	})
	in.readServices(txn, allServices, now)
	follow(in, txn, changed, in.identities, func(o *identities.Identity, gone bool) { in.identity(o, gone, now) })
	in.knownTo = in.Identities.Revision(txn)
	in.followLabels(txn, changed)
	keys := map[string]bool{} // keys of possible peers
	var owned []netip.Addr    // addresses that have another owner or claimant
	follow(in, txn, changed, in.endpoints, func(ep *endpoints.Endpoint, gone bool) {
		in.marked[ep.ID] = true
		if old := in.subjects[ep.ID]; old != nil {
			in.leavePod(old)
			keys[old.AttachmentID()], keys[old.PodName()] = true, true
			owned = append(owned, old.IPv4, old.IPv6)
		}
		keys[ep.AttachmentID()], keys[ep.PodName()] = true, true
		owned = append(owned, ep.IPv4, ep.IPv6)
		if gone {
			delete(in.subjects, ep.ID)
			in.resolver.DeleteSubject(ep.ID)
			return
		}
		in.join(ep)
		in.subject(txn, ep)
	})
	follow(in, txn, changed, in.of, func(o *identities.EndpointIdentity, _ bool) {
		keys[o.Attachment], in.marked[o.EndpointID] = true, true
	})
	// The controller watches the table itself, because not every change of facts needs a round.
	endpointfeed.Mark(in.marked, in.facts.UpTo(txn, statedb.NewWatchSet()), func(f *bpfendpoints.Facts) uint16 { return f.ID })
	in.ofPeers = statedb.NewWatchSet()
	follow(in, txn, in.ofPeers, in.remote, func(o *cilium.Endpoint, gone bool) {
		keys[o.Key()] = true
		owned = append(owned, in.peers.claim(o, gone)...)
	})
	for _, addr := range owned {
		in.claimants(addr, keys)
	}
	for _, change := range in.ipcache.UpTo(txn, in.ofPeers) {
		addr := change.Object.Prefix().Addr()
		in.claimants(addr, keys)
		if ep, _, found := in.Endpoints.Get(txn, endpoints.ByAddress(addr)); found {
			keys[ep.AttachmentID()] = true
		}
		in.alive()
	}
	changed.Merge(in.ofPeers)
	delete(keys, "") // the key of endpoints without a pod
	in.updatePeers(txn, changed, keys, now)
}

// readEnvironment applies the changes of the objects on which the meaning of policies depends, and queues policies that must be parsed again because of Services. It
// reports whether this pass must parse all of them. The caller must call releaseSnapshot after the last policy is parsed.
func (in *inputs) readEnvironment(txn statedb.ReadTxn, changed *statedb.WatchSet) (allServices bool) {
	moved := in.followGroups(txn, changed)
	in.services.follow(txn)
	in.services.txn = txn
	changed.Merge(in.services.changed)
	before := in.env
	in.where(txn, changed)
	in.readAgain(txn, moved, before.GroupsUnread != in.env.GroupsUnread)
	if allServices = before.ServicesUnread != in.env.ServicesUnread || before.SlicesUnread != in.env.SlicesUnread; allServices {
		in.services.enqueueAll()
	}
	return allServices
}

// releaseSnapshot removes the references to the snapshot of a pass.
func (in *inputs) releaseSnapshot() {
	in.env.Services, in.env.ServicesIn, in.services.txn = nil, nil, nil
}

// passOver handles a change of remote pods or of ipcache entries without a round, while no rule uses named ports of peers, and changes of Services for which
// no policy must be parsed again now. It reports whether the change was of that kind. [inputs.updatePeers] reads all rows when such a rule is added.
func (in *inputs) passOver(closed <-chan struct{}, changed *statedb.WatchSet) bool {
	if in.services.isOf(closed) {
		return in.passOverServices(changed)
	}
	if in.peers.loaded || !in.ofPeers.Has(closed) {
		return false
	}
	txn := in.DB.ReadTxn()
	in.ofPeers = statedb.NewWatchSet()
	in.remote.UpTo(txn, in.ofPeers)
	in.ipcache.UpTo(txn, in.ofPeers)
	changed.Merge(in.ofPeers)
	return true
}

// follow calls take with each change of one table.
func follow[R any](in *inputs, txn statedb.ReadTxn, changed *statedb.WatchSet, table *changefeed.Feed[R], take func(R, bool)) {
	for _, change := range table.UpTo(txn, changed) {
		take(change.Object, change.Deleted)
		in.alive()
	}
}

// policy adds, replaces or removes a policy. It affects the endpoints that it selects, before or after, and endpoints with unknown labels: see [inputs.doubt].
// In a large cluster most policies select no endpoint.
func (in *inputs) policy(p *policy.Policy, gone bool) {
	for _, id := range in.replacePolicy(p, gone) {
		in.marked[id] = true
	}
	in.markUnlabelled()
}

// replacePolicy returns the endpoints that the policy selects, before or after.
func (in *inputs) replacePolicy(p *policy.Policy, gone bool) (selected []uint16) {
	name := p.Ref.String()
	in.unshown[p.Ref] = true
	if delete(in.refer, name); len(p.Groups) > 0 && !gone {
		in.refer[name] = p
	}
	now := p
	if gone {
		now = nil
	}
	in.services.put(in.policies[p.Ref], now)
	if gone {
		delete(in.policies, p.Ref)
		return in.resolver.DeletePolicy(p.Ref)
	}
	in.policies[p.Ref] = p
	return in.resolver.UpsertPolicy(p)
}

func (in *inputs) identity(o *identities.Identity, gone bool, now time.Time) {
	if gone {
		in.leaving[o.ID] = now
		return
	}
	delete(in.leaving, o.ID)
	if !in.known[o.ID] {
		in.known[o.ID] = true
		in.arrived = append(in.arrived, o.ID)
	}
	in.resolver.UpsertIdentity(o.ID, o.Labels)
}

// forget removes identities that were deleted at least [identityGrace] ago, unless used reports true or ipcache names them: entries about an identity must
// apply as long as a peer has it in the maps. It returns the removed identities and the delay until the next call, 0 if none is necessary. A call before that
// costs nothing: identities are checked at most once in a tenth of the grace period. The table ipcache has no index by identity, so no channel tells that it
// names an identity no longer; nothing waits for that.
func (in *inputs) forget(used func(uint32) bool, now time.Time) (forgotten []uint32, again time.Duration) {
	if left := in.forgetAt.Sub(now); left > 0 && len(in.leaving) > 0 {
		return nil, left
	}
	var elsewhere map[uint32]bool // read if a grace period has expired
	for id, since := range in.leaving {
		left := identityGrace - now.Sub(since)
		if left <= 0 && elsewhere == nil {
			elsewhere = in.ipcacheIdentities()
		}
		if left > 0 || used(id) || elsewhere[id] {
			left = max(left, identityGrace/10)
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		delete(in.leaving, id)
		delete(in.known, id)
		in.resolver.DeleteIdentity(id)
		forgotten = append(forgotten, id)
	}
	in.forgetAt = now.Add(again)
	return forgotten, again
}

// ipcacheIdentities returns the identities that ipcache names.
func (in *inputs) ipcacheIdentities() map[uint32]bool {
	all := map[uint32]bool{}
	for e := range in.IPCache.All(in.DB.ReadTxn()) {
		all[e.Identity] = true
	}
	return all
}

// where reads the environment on which the meaning of policies depends. After a change of the API servers it parses the policies of Cilium again. Kubernetes
// policies cannot refer to the API server.
func (in *inputs) where(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	env := in.Inputs.Read(txn, changed)
	env.CIDRGroups = in.groups
	same := in.env.SameAPIServers(&env)
	if in.env = env; same || !in.Config.Cilium {
		return
	}
	for o := range in.CiliumPolicies.All(txn) {
		in.policy(policy.FromCilium(o, in.env), false)
		in.alive()
	}
}
