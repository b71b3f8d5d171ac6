package policycompiler

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// ruleset holds the rules of the policies of some endpoints in one direction, and their last compiled result.
type ruleset struct {
	resolver   *Resolver
	key        string
	direction  policy.Direction
	namespace  string // of the policies that are not cluster-wide
	parts      []*part
	subjects   int // number of subjects that use it
	isolated   bool
	localhost  bool // the local host is allowed regardless of the rules
	rules      []*rule
	narrowed   []*rule  // rules that are copies, because other policies of the endpoints narrow their peers
	effects    []effect // effects of the rules on their peers
	cookies    *ruleCookies
	bySelector map[*selector][]int
	held       map[*selector]struct{} // selectors of the rules, and of the rules that narrowed replaces
	anyPeer    []int                  // rules about every peer
	cidrs      []cidrUse
	named      map[netip.Prefix]struct{} // prefixes of cidrs
	peersNamed bool                      // rules name ports of peers
	exceptions int                       // see [ruleset.countExceptions]
	conditions []policy.Ref              // see [Compiled.ExceedsConditions]
	account    *account
	at         []policy.NamedPort // named ports of the subjects

	compiled *Compiled
	missing  []netip.Prefix
	wide     wide // effects of the rules about every peer
	stale    bool // everything must be compiled
	touched  map[peer]struct{}
}

// cidrUse is a selection of peers by address, with the index of its rule.
type cidrUse struct {
	*cidrPeer
	rule int
}

func (r *Resolver) newRuleset(key string, d policy.Direction, parts []*part, ports []policy.NamedPort) *ruleset {
	set := &ruleset{resolver: r, key: key, direction: d, parts: parts, isolated: r.options.Mode == policy.Always, stale: true,
		touched: map[peer]struct{}{}, at: ports, localhost: d == policy.Ingress && r.options.AllowLocalhost}
	for _, p := range parts {
		set.namespace = cmp.Or(set.namespace, p.owner.policy.Ref.Namespace)
		set.isolated = set.isolated || p.Isolates(d)
	}
	set.account = r.accountOf(set)
	set.reset()
	set.choosePeers()
	return set
}

// reset sets the rules, without their peers.
func (set *ruleset) reset() {
	set.rules, set.narrowed, set.effects, set.anyPeer, set.cidrs, set.conditions = nil, nil, nil, nil, nil, nil
	set.held, set.bySelector, set.named, set.cookies = map[*selector]struct{}{}, map[*selector][]int{}, map[netip.Prefix]struct{}{}, &ruleCookies{}
	set.peersNamed, set.exceptions = false, 0
	for _, p := range set.parts {
		set.rules = append(set.rules, p.rules[set.direction]...)
	}
}

// choosePeers selects the peers of the rules after [ruleset.reset].
func (set *ruleset) choosePeers() {
	r, d := set.resolver, set.direction
	var required policy.Requirements
	for _, p := range set.parts {
		r.use(p, d)
		required.Add(p.owner.policy.Ref, p.Part, d)
	}
	for _, p := range set.parts {
		if ref := p.owner.policy.Ref; required.Exceeded(ref, p.Part, d) {
			set.conditions = append(set.conditions, ref)
		}
	}
	set.hold()
	set.narrow(r, &required)
	set.hold()
	for i, rule := range set.rules {
		one := effect{rule: i, deny: rule.Deny, all: rule.Ports.Any, ports: rule.ports}
		switch {
		case len(rule.named) == 0:
		case d == policy.Egress:
			set.peersNamed = true
		default:
			one.ports = slices.Clone(one.ports)
			for _, named := range rule.named {
				one.ports = append(one.ports, named.at(set.at)...)
			}
		}
		set.effects = append(set.effects, one)
		set.cookies.of = append(set.cookies.of, rule.cookie)
		set.index(i)
	}
	set.exceptions = set.countExceptions()
	set.cookies.of = append(set.cookies.of, CookieNotIsolated)
	for s := range set.bySelector {
		s.users[set] = struct{}{}
	}
}

// hold counts the selectors of the rules in the account.
func (set *ruleset) hold() {
	for _, rule := range set.rules {
		for _, s := range rule.selectors {
			if _, again := set.held[s]; !again {
				set.held[s] = struct{}{}
				s.hold(set)
			}
		}
	}
}

// releasePeers reverts [ruleset.choosePeers].
func (set *ruleset) releasePeers() {
	for s := range set.bySelector {
		delete(s.users, set)
	}
	for s := range set.held {
		s.drop(set)
	}
	gone := set.narrowed
	for _, p := range set.parts {
		gone = append(gone, set.resolver.unuse(p, set.direction)...)
	}
	set.resolver.releasePeers(gone...)
	set.reset()
}

// narrow replaces the rules whose peers must meet requirements with copies.
func (set *ruleset) narrow(r *Resolver, required *policy.Requirements) {
	for i, one := range set.rules {
		narrow := required.Narrow(one.ref, one.Rule)
		if narrow == one.Rule {
			continue
		}
		set.rules[i] = &rule{Rule: narrow, ref: one.ref, cookie: one.cookie, ports: one.ports, named: one.named}
		r.choosePeers(set.rules[i])
		set.narrowed = append(set.narrowed, set.rules[i])
	}
}

// index files a rule under its peers.
func (set *ruleset) index(i int) {
	rule := set.rules[i]
	if rule.Peers.Any {
		set.anyPeer = append(set.anyPeer, i)
	}
	for _, s := range rule.selectors {
		set.choose(s, i)
	}
	for k := range rule.cidrs {
		use := cidrUse{&rule.cidrs[k], i}
		set.cidrs = append(set.cidrs, use)
		set.named[use.prefix] = struct{}{}
		for _, except := range use.except {
			set.named[except] = struct{}{}
		}
	}
}

func (set *ruleset) choose(s *selector, i int) {
	if of := set.bySelector[s]; len(of) == 0 || of[len(of)-1] != i {
		set.bySelector[s] = append(of, i)
	}
}

// invalidate marks all entries for compilation.
func (set *ruleset) invalidate() {
	if set.stale {
		return
	}
	set.stale = true
	set.resolver.touched[set] = struct{}{}
}

// touch marks an identity or a class that rules now select or no longer select.
func (set *ruleset) touch(p peer) {
	if set.peersNamed {
		set.resolver.podPrefixesStale = true
	}
	switch {
	case set.stale:
	case set.peersNamed || len(set.missing) > 0:
		set.invalidate()
	default:
		set.touched[p] = struct{}{}
		set.resolver.touched[set] = struct{}{}
	}
}

// touchCIDR marks a named CIDR that was added or removed. With nested CIDRs, only CIDRs that the rules name concern the rule set.
func (set *ruleset) touchCIDR(prefix netip.Prefix, number uint32) {
	_, names := set.named[prefix]
	switch {
	case set.peersNamed || names || len(set.missing) > 0:
		set.invalidate()
	case len(set.cidrs) > 0 && !set.resolver.nested:
		set.touch(peer{CIDR, number})
	}
}

// many is the largest number of peers that are compiled one by one. For more peers, everything is compiled.
const many = 64

// compile returns the current result of the rule set. It reuses the parts of previous that are equal.
func (set *ruleset) compile(r *Resolver, previous *Compiled) *Compiled {
	set.cookies.built, set.cookies.limit = size{}, r.limit
	if !set.stale && len(set.touched) == 0 {
		return set.compiled
	}
	exceeded := set.exceeded(r)
	if set.stale || len(set.touched) > many || set.compiled.tooLarge || exceeded != "" {
		if set.compiled != nil {
			previous = set.compiled
		}
		set.compiled = set.completed(set.all(r, exceeded)).reuse(previous)
	} else {
		set.compiled = set.completed(set.patch(r))
	}
	set.stale = false
	clear(set.touched)
	delete(r.touched, set)
	return set.compiled
}
