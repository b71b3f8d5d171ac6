package policycompiler

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// rule is a rule of a policy in the form that the compiler needs. Only a rule of a part in use has selectors and cidrs.
type rule struct {
	*policy.Rule
	ref       policy.Ref
	cookie    uint32
	selectors []*selector
	cidrs     []cidrPeer
	byPrefix  map[netip.Prefix][]*cidrPeer // cidrs, of an egress rule with names of ports
	ports     []span                       // ports with numbers
	named     []namedRef
}

// cidrPeer selects peers by address.
type cidrPeer struct {
	prefix   netip.Prefix
	except   []netip.Prefix
	excepted map[netip.Prefix]struct{} // except
	scope    policy.Scope
}

func (c *cidrPeer) kind() Kind { return kindOf(c.scope) }

func kindOf(scope policy.Scope) Kind {
	if scope == policy.Outside {
		return CIDROutside
	}
	return CIDR
}

// includes reports whether a named CIDR is inside the prefix and outside all excepted prefixes. Excepted prefixes inside it do not matter, because they are
// named CIDRs of their own.
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

// namedRef identifies a port by name and protocol.
type namedRef struct {
	name     string
	protocol uint8
}

// part holds the rules of a policy for one selection of subjects.
type part struct {
	*policy.Part
	owner  *policyState
	index  int
	serial uint64 // rises from part to part
	filed  []anchor
	rules  map[policy.Direction][]*rule
	users  map[policy.Direction]int // number of rule sets with it
}

// speaksOf reports whether the part isolates its subjects or has rules or requirements in a direction.
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

// policyState is a policy of the resolver.
type policyState struct {
	policy   *policy.Policy
	parts    []*part
	cookies  map[string]uint32 // by path of the rule
	subjects int               // number of endpoints that it selects
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

// UpsertPolicy adds a policy or replaces its previous version. It returns the endpoints that one of the two versions selects, in no order.
func (r *Resolver) UpsertPolicy(p *policy.Policy) (selected []uint16) {
	old := r.policies[p.Ref]
	if old != nil && old.policy == p {
		return nil
	}
	now := r.prepare(p, old)
	r.policies[p.Ref] = now
	for _, one := range now.parts {
		one.filed = r.parts.file(one, &one.Subject)
	}
	selected = r.replaceParts(old, now)
	r.release(old, now)
	return selected
}

// DeletePolicy removes a policy. It returns the endpoints that the policy selected, in no order.
func (r *Resolver) DeletePolicy(ref policy.Ref) (selected []uint16) {
	old := r.policies[ref]
	if old == nil {
		return nil
	}
	delete(r.policies, ref)
	none := &policyState{}
	selected = r.replaceParts(old, none)
	r.release(old, none)
	return selected
}

// SubjectsChanged returns the policies whose [Resolver.SubjectsOf] may have changed since the last call, in no order.
func (r *Resolver) SubjectsChanged() (refs []policy.Ref) {
	for ref := range r.recounted {
		refs = append(refs, ref)
	}
	if len(refs) > 0 {
		r.recounted = map[policy.Ref]struct{}{} // iterating over a map takes time by its largest size
	}
	return refs
}

// SubjectsOf returns the number of endpoints that a policy selects.
func (r *Resolver) SubjectsOf(ref policy.Ref) int {
	if s := r.policies[ref]; s != nil {
		return s.subjects
	}
	return 0
}

// prepare prepares a policy. A rule at the same path as a rule of the previous version keeps its cookie.
func (r *Resolver) prepare(p *policy.Policy, old *policyState) *policyState {
	s := &policyState{policy: p, cookies: map[string]uint32{}}
	for i := range p.Parts {
		r.serial++
		one := &part{Part: &p.Parts[i], owner: s, index: i, serial: r.serial, rules: map[policy.Direction][]*rule{},
			users: map[policy.Direction]int{}}
		for k := range one.Rules {
			in := &one.Rules[k]
			one.rules[in.Direction] = append(one.rules[in.Direction], r.prepareRule(s, in, old))
		}
		s.parts = append(s.parts, one)
	}
	return s
}

func (r *Resolver) prepareRule(s *policyState, in *policy.Rule, old *policyState) *rule {
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

// use counts one more rule set with a part. The first use selects the peers of the part's rules and names their prefixes, so a part without an endpoint on this
// node costs neither.
func (r *Resolver) use(p *part, d policy.Direction) {
	if p.users[d]++; p.users[d] > 1 {
		return
	}
	for _, one := range p.rules[d] {
		r.choosePeers(one)
	}
}

// unuse reverts [Resolver.use]. The caller must release the peers of the returned rules.
func (r *Resolver) unuse(p *part, d policy.Direction) []*rule {
	if p.users[d]--; p.users[d] > 0 {
		return nil
	}
	return p.rules[d]
}

func (r *Resolver) choosePeers(of *rule) {
	if !of.Peers.Any {
		chosen := map[*selector]struct{}{}
		choose := func(s *selector) {
			if _, again := chosen[s]; again {
				s.rules--
				return
			}
			chosen[s] = struct{}{}
			of.selectors = append(of.selectors, s)
		}
		for i := range of.Peers.List {
			switch peer := &of.Peers.List[i]; {
			case peer.CIDR.IsValid():
				of.cidrs = append(of.cidrs, newCIDRPeer(peer))
			case peer.Labels != nil:
				choose(r.selectors.ofLabels(peer.Labels))
			default:
				choose(r.selectors.ofNumbers(peer.Identities))
			}
		}
	}
	r.countPrefixes(of, 1)
	if of.Direction == policy.Egress && len(of.named) > 0 {
		r.namedRules[of] = struct{}{}
		r.countNames(of, 1)
		of.byPrefix = map[netip.Prefix][]*cidrPeer{}
		for i := range of.cidrs {
			c := &of.cidrs[i]
			of.byPrefix[c.prefix] = append(of.byPrefix[c.prefix], c)
		}
	}
}

// releasePeers reverts [Resolver.choosePeers].
func (r *Resolver) releasePeers(rules ...*rule) {
	var selectors []*selector
	for _, of := range rules {
		r.countPrefixes(of, -1)
		selectors = append(selectors, of.selectors...)
		of.selectors, of.cidrs, of.byPrefix = nil, nil, nil
		if _, named := r.namedRules[of]; named {
			delete(r.namedRules, of)
			r.countNames(of, -1)
		}
	}
	r.selectors.release(selectors...)
}

// countNames adds n to the use of each port name of a rule.
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

// numbersAndNames separates ports with numbers from ports with names. A policy may repeat a port many times; the results contain it once.
func numbersAndNames(ports []policy.Port) (numbers []span, named []namedRef) {
	for _, p := range ports {
		switch {
		case p.Protocol == 0: // an entry of protocol 0 would apply to all protocols
		case p.All:
			numbers = append(numbers, span{protocol: p.Protocol, run: run{0, math.MaxUint16}})
		case p.Name != "":
			named = append(named, namedRef{p.Name, p.Protocol})
		case p.Low <= p.High:
			numbers = append(numbers, span{protocol: p.Protocol, run: run{p.Low, p.High}})
		}
	}
	sortSpans(numbers)
	slices.SortFunc(named, func(a, b namedRef) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.name, b.name))
	})
	return slices.Compact(numbers), slices.Compact(named)
}

// newCookie returns a number that names no rule. Numbers are assigned in ascending order and wrap around, so that a released number is reused as late as
// possible.
func (r *Resolver) newCookie() uint32 {
	for {
		r.lastCookie = max(r.lastCookie+1, cookieMin) // the lowest number follows the highest
		if _, used := r.cookies[r.lastCookie]; !used {
			return r.lastCookie
		}
	}
}

// release frees the cookies of a previous version of a policy, except the cookies that the current version kept.
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

// replaceParts replaces the parts of the previous version of a policy with the parts of the current one in all endpoints. old may be nil. It returns the
// endpoints that had or have parts.
func (r *Resolver) replaceParts(old, now *policyState) (selected []uint16) {
	if old != nil {
		for _, one := range old.parts {
			r.parts.remove(one, one.filed)
		}
	}
	for _, s := range r.subjects {
		had := old != nil && r.drop(s, old)
		if has := r.take(s, now.parts); had || has {
			r.unsettled[s] = struct{}{}
			selected = append(selected, s.ID)
		}
	}
	return selected
}
