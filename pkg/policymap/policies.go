package policymap

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// rule is a rule of a policy, as the compiler needs it. Only a rule of a part that is in use has selectors and cidrs.
type rule struct {
	*policy.Rule
	ref       policy.Ref
	cookie    uint32
	selectors []*selector
	cidrs     []cidrPeer
	ports     []span // those that are numbers
	named     []namedRef
}

// cidrPeer is a choice of peers by address.
type cidrPeer struct {
	prefix   netip.Prefix
	except   []netip.Prefix
	excepted map[netip.Prefix]struct{} // except
	scope    policy.Scope
}

func (c *cidrPeer) kind() Kind {
	if c.scope == policy.Outside {
		return CIDROutside
	}
	return CIDR
}

// includes tells whether all of a named CIDR is chosen. As the excepted prefixes are named too, it is that or none.
func (c *cidrPeer) includes(prefix netip.Prefix) bool {
	if !contains(c.prefix, prefix) {
		return false
	}
	for bits := prefix.Bits(); bits > c.prefix.Bits() && len(c.excepted) > 0; bits-- {
		if _, found := c.excepted[netip.PrefixFrom(prefix.Addr(), bits).Masked()]; found {
			return false
		}
	}
	return true
}

// namedRef is a port by name.
type namedRef struct {
	name     string
	protocol uint8
}

// part is what a policy says of one choice of subjects.
type part struct {
	*policy.Part
	owner  *policyState
	index  int
	serial uint64 // rises from part to part
	filed  []anchor
	rules  map[policy.Direction][]*rule
	users  map[policy.Direction]int // rule sets of endpoints that have it
}

// speaksOf tells whether the part says anything of a direction.
func (p *part) speaksOf(d policy.Direction) bool {
	return p.Isolates(d) || len(p.rules[d]) > 0 ||
		slices.ContainsFunc(p.Requirements, func(r policy.PeerRequirement) bool { return r.Direction == d })
}

// compare orders parts by their policies.
func (p *part) compare(o *part) int {
	a, b := p.owner.policy.Ref, o.owner.policy.Ref
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		cmp.Compare(p.index, o.index))
}

// policyState is a policy that the resolver knows.
type policyState struct {
	policy   *policy.Policy
	parts    []*part
	cookies  map[string]uint32 // by path of the rule
	subjects int               // that it selects
}

// eachRule calls f for all rules.
func (s *policyState) eachRule(f func(*rule)) {
	for _, part := range s.parts {
		for _, d := range policy.Directions {
			for _, r := range part.rules[d] {
				f(r)
			}
		}
	}
}

// UpsertPolicy adds a policy or puts it in place of its former version.
func (r *Resolver) UpsertPolicy(p *policy.Policy) {
	old := r.policies[p.Ref]
	if old != nil && old.policy == p {
		return
	}
	now := r.adopt(p, old)
	r.policies[p.Ref] = now
	for _, one := range now.parts {
		one.filed = r.parts.file(one, &one.Subject)
	}
	r.replaceParts(old, now)
	r.release(old, now)
}

// DeletePolicy forgets a policy.
func (r *Resolver) DeletePolicy(ref policy.Ref) {
	old := r.policies[ref]
	if old == nil {
		return
	}
	delete(r.policies, ref)
	none := &policyState{}
	r.replaceParts(old, none)
	r.release(old, none)
}

// SubjectsChanged returns the policies of which [Resolver.SubjectsOf] may have changed since the last call, in no order.
func (r *Resolver) SubjectsChanged() (refs []policy.Ref) {
	for ref := range r.recounted {
		refs = append(refs, ref)
	}
	if len(refs) > 0 {
		r.recounted = map[policy.Ref]struct{}{} // iterating over a map takes time by its largest size
	}
	return refs
}

// SubjectsOf is the number of endpoints that a policy selects.
func (r *Resolver) SubjectsOf(ref policy.Ref) int {
	if s := r.policies[ref]; s != nil {
		return s.subjects
	}
	return 0
}

// adopt prepares a policy. A rule that stands where one stood before keeps its cookie.
func (r *Resolver) adopt(p *policy.Policy, old *policyState) *policyState {
	s := &policyState{policy: p, cookies: map[string]uint32{}}
	for i := range p.Parts {
		r.serial++
		one := &part{Part: &p.Parts[i], owner: s, index: i, serial: r.serial, rules: map[policy.Direction][]*rule{},
			users: map[policy.Direction]int{}}
		for k := range one.Rules {
			in := &one.Rules[k]
			one.rules[in.Direction] = append(one.rules[in.Direction], r.adoptRule(s, in, old))
		}
		s.parts = append(s.parts, one)
	}
	return s
}

func (r *Resolver) adoptRule(s *policyState, in *policy.Rule, old *policyState) *rule {
	out := &rule{Rule: in, ref: s.policy.Ref}
	out.cookie = s.cookies[in.Path]
	if out.cookie == 0 && old != nil {
		out.cookie = old.cookies[in.Path]
	}
	if out.cookie == 0 {
		out.cookie = r.newCookie()
	}
	s.cookies[in.Path] = out.cookie
	r.cookies[out.cookie] = struct{}{}
	if !in.Ports.Any {
		out.ports, out.named = numbersAndNames(in.Ports.List)
	}
	return out
}

// use counts one more rule set that has a part. The first one has the peers of its rules followed and their prefixes named: a part that no endpoint of this
// node has costs neither.
func (r *Resolver) use(p *part, d policy.Direction) {
	if p.users[d]++; p.users[d] > 1 {
		return
	}
	for _, one := range p.rules[d] {
		r.choosePeers(one)
	}
}

// unuse takes back [Resolver.use].
func (r *Resolver) unuse(p *part, d policy.Direction) {
	if p.users[d]--; p.users[d] > 0 {
		return
	}
	for _, one := range p.rules[d] {
		r.releasePeers(one)
	}
}

func (r *Resolver) choosePeers(of *rule) {
	if !of.Peers.Any {
		for i := range of.Peers.List {
			switch peer := &of.Peers.List[i]; {
			case peer.CIDR.IsValid():
				of.cidrs = append(of.cidrs, newCIDRPeer(peer))
			case peer.Labels != nil:
				of.selectors = append(of.selectors, r.selectors.ofLabels(peer.Labels))
			default:
				of.selectors = append(of.selectors, r.selectors.ofNumbers(peer.Identities))
			}
		}
	}
	r.countPrefixes(of, 1)
	if of.Direction == policy.Egress && len(of.named) > 0 {
		r.namedRules[of] = struct{}{}
		r.countNames(of, 1)
	}
}

func (r *Resolver) releasePeers(of *rule) {
	r.countPrefixes(of, -1)
	for _, s := range of.selectors {
		r.selectors.release(s)
	}
	of.selectors, of.cidrs = nil, nil
	if _, named := r.namedRules[of]; named {
		delete(r.namedRules, of)
		r.countNames(of, -1)
	}
}

// countNames counts n times the ports that a rule names.
func (r *Resolver) countNames(of *rule, n int) {
	for _, named := range of.named {
		if r.portNames[named] += n; r.portNames[named] == 0 {
			delete(r.portNames, named)
		}
	}
	r.podPrefixesStale = true
}

func newCIDRPeer(p *policy.Peer) cidrPeer {
	out := cidrPeer{prefix: p.CIDR.Masked(), scope: p.Scope, excepted: map[netip.Prefix]struct{}{}}
	for _, except := range p.Except {
		out.except = append(out.except, except.Masked())
		out.excepted[except.Masked()] = struct{}{}
	}
	return out
}

func (r *Resolver) countPrefixes(of *rule, by int) {
	if len(of.cidrs) > 0 {
		r.namers++
	}
	for _, c := range of.cidrs {
		r.prefixes.add(of.ref.Namespace, c.prefix, by)
		for _, except := range c.except {
			r.prefixes.add(of.ref.Namespace, except, by)
		}
	}
}

// numbersAndNames separates ports with numbers from those with names.
func numbersAndNames(ports []policy.Port) (numbers []span, named []namedRef) {
	for _, p := range ports {
		switch {
		case p.Protocol == 0: // an entry of protocol 0 would be about all of them
		case p.All:
			numbers = append(numbers, span{protocol: p.Protocol, run: run{0, math.MaxUint16}})
		case p.Name != "":
			named = append(named, namedRef{p.Name, p.Protocol})
		case p.Low <= p.High:
			numbers = append(numbers, span{protocol: p.Protocol, run: run{p.Low, p.High}})
		}
	}
	return numbers, named
}

// newCookie finds a number that names no rule, and that did not do so for as long as possible.
func (r *Resolver) newCookie() uint32 {
	for {
		r.lastCookie = max(r.lastCookie+1, cookieMin) // behind the highest comes the lowest
		if _, used := r.cookies[r.lastCookie]; !used {
			return r.lastCookie
		}
	}
}

// release gives back the cookies of a previous version of a policy, except those that its successor kept.
func (r *Resolver) release(old, now *policyState) {
	if old == nil {
		return
	}
	old.eachRule(func(gone *rule) {
		if now.cookies[gone.Path] != gone.cookie {
			delete(r.cookies, gone.cookie)
		}
	})
}

// replaceParts lets the endpoints have the parts of one version of a policy instead of those of another. old may be nil.
func (r *Resolver) replaceParts(old, now *policyState) {
	if old != nil {
		for _, one := range old.parts {
			r.parts.remove(one, one.filed)
		}
	}
	for _, s := range r.subjects {
		had := old != nil && r.drop(s, old)
		if has := r.take(s, now.parts); had || has {
			r.unsettled[s] = struct{}{}
		}
	}
}
