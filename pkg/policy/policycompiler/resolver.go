package policycompiler

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Resolver holds all policies, identities, named CIDRs and endpoints, and compiles the policies of each endpoint. It is not safe for concurrent use. Its
// results are immutable and safe for concurrent use. The caller must not change arguments after a call.
type Resolver struct {
	options    policy.Options
	limit      size
	limits     limits
	accounts   map[string]*account      // by namespace, "" for cluster-wide policies
	overdrawn  map[*account]struct{}    // accounts that may be beyond the limit
	unselected map[*ruleset]*unselected // rule sets whose peers are released
	mayFit     bool                     // a rule set of unselected may fit since the last [Resolver.selectAgain]
	tried      *ruleset                 // in [Resolver.selectAgain]; otherwise nil
	allowAll   *Compiled
	policies   map[policy.Ref]*policyState
	parts      anchored[*part]         // of the policies
	recounted  map[policy.Ref]struct{} // see [Resolver.SubjectsChanged]
	subjects   map[uint16]*subject
	unsettled  map[*subject]struct{} // endpoints whose rule sets must be chosen again
	rulesets   map[string]*ruleset
	touched    map[*ruleset]struct{} // compiled rule sets that must be compiled again
	selectors  *selectors
	serial     uint64 // of the last part
	cookies    map[uint32]struct{}
	lastCookie uint32

	pods       map[string][]*Pod
	podsOf     map[uint32]*podsOf // by identity
	serving    map[namedRef]servers
	namedRules map[*rule]struct{} // rules in use that name ports of peers
	portNames  map[namedRef]int   // number of uses of each port name in namedRules

	nested           bool                      // see [Resolver.SetNested]
	prefixes         prefixCounts              // prefixes that rules in use name
	podPrefix        map[netip.Prefix]struct{} // prefixes that named ports need in addition
	podPrefixesStale bool
	named            []netip.Prefix // both, sorted: see [Resolver.NamedCIDRs]
	namings          uint64         // rises when the prefixes of a namespace change
	namers           uint64         // rises when a rule starts or stops naming prefixes
	cidrs            namedCIDRs
}

// New returns a resolver without policies, identities, CIDRs and endpoints.
func New(options policy.Options) *Resolver {
	r := &Resolver{options: options, accounts: map[string]*account{}, overdrawn: map[*account]struct{}{}, unselected: map[*ruleset]*unselected{},
		limits: limits{maxPairs, peersPerPair * maxPairs}, allowAll: &Compiled{allowsAll: true}, policies: map[policy.Ref]*policyState{},
		parts: anchored[*part]{}, recounted: map[policy.Ref]struct{}{},
		subjects: map[uint16]*subject{}, unsettled: map[*subject]struct{}{}, rulesets: map[string]*ruleset{}, touched: map[*ruleset]struct{}{}, selectors: newSelectors(),
		cookies: map[uint32]struct{}{}, pods: map[string][]*Pod{}, podsOf: map[uint32]*podsOf{}, serving: map[namedRef]servers{},
		namedRules: map[*rule]struct{}{}, portNames: map[namedRef]int{}, prefixes: prefixCounts{of: map[string]map[netip.Prefix]int{}}, named: []netip.Prefix{}, cidrs: newNamedCIDRs()}
	r.selectors.shrink, r.selectors.overdrawn = r.shrink, func() bool { return len(r.overdrawn) > 0 }
	return r
}

// UpsertIdentity sets the labels, "source:key" -> value, of an identity. The caller must add the fixed identities as well.
func (r *Resolver) UpsertIdentity(number uint32, labels map[string]string) {
	r.selectors.upsert(number, labels)
}

// DeleteIdentity removes an identity.
func (r *Resolver) DeleteIdentity(number uint32) {
	r.mayFit = true
	r.reclassed(number, r.selectors.remove(number))
}

// NamedCIDRs returns all prefixes that need an identity, sorted: the prefixes that rules of endpoints name, and the addresses of the pods that egress rules
// with named ports select by address. These are pods inside a CIDR of such a rule, and pods of an identity whose pods disagree about the port. NamedCIDRs
// returns the same slice until the prefixes change.
func (r *Resolver) NamedCIDRs() []netip.Prefix {
	r.settle()
	if r.podPrefixesStale && len(r.namedRules)+len(r.podPrefix) > 0 {
		if now := r.podPrefixes(); !maps.Equal(now, r.podPrefix) {
			r.podPrefix, r.prefixes.changed = now, true
		}
	}
	r.podPrefixesStale = false
	if r.prefixes.changed {
		now := slices.Collect(maps.Keys(r.podPrefix))
		for _, counts := range r.prefixes.of {
			now = slices.AppendSeq(now, maps.Keys(counts))
		}
		slices.SortFunc(now, netip.Prefix.Compare)
		if now = slices.Compact(now); !slices.Equal(now, r.named) {
			r.named = now
		}
		r.prefixes.changed = false
		r.namings++
	}
	return r.named
}

// Namings returns a counter that rises whenever an input of [Resolver.BeyondQuota] has changed, for example when one more namespace names a prefix.
func (r *Resolver) Namings() uint64 { return r.namings }

// Namers returns a counter that rises whenever an input of [Resolver.Naming] has changed, for example when one more policy of a namespace names a prefix.
func (r *Resolver) Namers() uint64 { return r.namers }

// SetCIDRs sets the identities of the named CIDRs: all CIDRs that the datapath knows or is about to know, including retired ones. Identities must be unique and
// not 0. The resolver does not keep the map.
func (r *Resolver) SetCIDRs(identities map[netip.Prefix]uint32) {
	gone, come := r.cidrs.set(identities)
	for _, n := range append(gone, come...) {
		for _, set := range r.rulesets {
			set.touchCIDR(n.prefix, n.identity)
		}
	}
}

// SetNested sets whether the datapath supports [ShapeNested]. If it does, a rule about a CIDR has entries about that CIDR and about the excepted CIDRs inside
// it. Otherwise the rule has entries about each named CIDR inside, including CIDRs that other rules name.
func (r *Resolver) SetNested(nested bool) {
	if r.nested == nested {
		return
	}
	r.nested = nested
	for _, set := range r.rulesets {
		if len(set.cidrs) > 0 {
			set.invalidate()
		}
	}
}

// NeedsCompile reports whether a rule set of endpoints must be compiled again. Then results may change for endpoints that neither [Resolver.UpsertSubject] nor a
// change of policies concerns, for example because an identity or a CIDR is new to their rules.
func (r *Resolver) NeedsCompile() bool {
	r.settle()
	return len(r.touched) > 0 // a new rule set concerns only the endpoints that [Resolver.settle] gave it to
}

// Decision holds the compiled policies for one direction of an endpoint.
type Decision struct {
	Enforced *Compiled
	Audited  *Compiled // as if policies in audit mode were enforced; nil when no such policy applies
}

// Compile returns the compiled policies of an endpoint. It returns the same pointers until they change, and for all endpoints with the same policies. The
// decisions for an unknown endpoint are zero.
func (r *Resolver) Compile(id uint16) (ingress, egress Decision) {
	s := r.subjects[id]
	switch {
	case s == nil:
		return Decision{}, Decision{}
	case r.options.Mode == policy.Never:
		return Decision{Enforced: r.allowAll}, Decision{Enforced: r.allowAll}
	}
	r.settle()
	return r.decide(&s.sets[0]), r.decide(&s.sets[1])
}

func (r *Resolver) decide(c *choice) (d Decision) {
	for _, h := range [...]*held{&c.enforced, &c.audited} {
		if h.set == nil {
			h.compiled = nil
			continue
		}
		h.compiled = h.set.compile(r, h.compiled)
	}
	return Decision{c.enforced.compiled, c.audited.compiled}
}

// Peer returns the peer as which the datapath identifies an address with an identity.
func (r *Resolver) Peer(number uint32, address netip.Addr) Peer {
	return Peer{Identity: number, Classes: r.ClassesOf(number), CIDRs: r.cidrs.around(address), Outside: policy.Outside.Includes(number, r.options)}
}
