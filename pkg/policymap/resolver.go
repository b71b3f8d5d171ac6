package policymap

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Resolver knows all policies, identities, named CIDRs and endpoints. It is for one goroutine; what it returns is for all,
// and is never changed afterwards. What it is given must not be changed afterwards either.
type Resolver struct {
	options    policy.Options
	allowAll   *Compiled
	policies   map[policy.Ref]*policyState
	parts      anchored[*part]         // of the policies
	recounted  map[policy.Ref]struct{} // see [Resolver.SubjectsChanged]
	subjects   map[uint16]*subject
	unsettled  map[*subject]struct{} // whose rule sets must be chosen again
	rulesets   map[string]*ruleset
	touched    map[*ruleset]struct{} // those that were compiled and must be compiled again
	selectors  *selectors
	serial     uint64 // of the last part
	cookies    map[uint32]struct{}
	lastCookie uint32

	pods       map[string][]*Pod
	podsOf     map[uint32]*podsOf // by identity
	namedRules map[*rule]struct{} // those in use that name ports of peers
	portNames  map[namedRef]int   // that these name, and how often

	nested           bool                      // see [Resolver.SetNested]
	prefixes         prefixCounts              // that rules in use name
	podPrefix        map[netip.Prefix]struct{} // that named ports need besides
	podPrefixesStale bool
	named            []netip.Prefix // both; nil when it must be made anew
	namings          uint64         // rises when a namespace names other prefixes
	namers           uint64         // rises when a rule names prefixes, or no longer does
	cidrs            namedCIDRs
}

// New makes one that knows nothing.
func New(options policy.Options) *Resolver {
	return &Resolver{options: options, allowAll: &Compiled{allowsAll: true}, policies: map[policy.Ref]*policyState{},
		parts: anchored[*part]{}, recounted: map[policy.Ref]struct{}{},
		subjects: map[uint16]*subject{}, unsettled: map[*subject]struct{}{}, rulesets: map[string]*ruleset{}, touched: map[*ruleset]struct{}{}, selectors: newSelectors(),
		cookies: map[uint32]struct{}{}, pods: map[string][]*Pod{}, podsOf: map[uint32]*podsOf{},
		namedRules: map[*rule]struct{}{}, portNames: map[namedRef]int{}, prefixes: prefixCounts{of: map[string]map[netip.Prefix]int{}}, named: []netip.Prefix{}, cidrs: newNamedCIDRs()}
}

// UpsertIdentity says what labels, "source:key" -> value, a number stands for. The fixed identities must be told as well.
func (r *Resolver) UpsertIdentity(number uint32, labels map[string]string) {
	r.selectors.upsert(number, labels)
}

// DeleteIdentity forgets a number.
func (r *Resolver) DeleteIdentity(number uint32) {
	r.reclassed(number, r.selectors.remove(number))
}

// NamedCIDRs are all prefixes that need an identity now, sorted: those that rules of endpoints name, and the addresses of pods
// whose named port is not that of the others of their identity. The same slice is returned until they change.
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
		slices.SortFunc(now, comparePrefixes)
		if now = slices.Compact(now); !slices.Equal(now, r.named) {
			r.named = now
		}
		r.prefixes.changed = false
		r.namings++
	}
	return r.named
}

// Namings rises whenever what [Resolver.BeyondQuota] depends on has changed, as when another namespace names a prefix that is named already.
func (r *Resolver) Namings() uint64 { return r.namings }

// Namers rises whenever what [Resolver.Naming] depends on has changed, as when another policy of a namespace names the same prefix.
func (r *Resolver) Namers() uint64 { return r.namers }

// SetCIDRs says which identities the named CIDRs have: all that the datapath knows or is about to, retired ones included. No
// two have the same, and none has 0. The map is not kept.
func (r *Resolver) SetCIDRs(identities map[netip.Prefix]uint32) {
	gone, come := r.cidrs.set(identities)
	for _, n := range append(gone, come...) {
		for _, set := range r.rulesets {
			set.touchCIDR(n.prefix, n.identity)
		}
	}
}

// SetNested says whether the datapath knows [ShapeNested]. Then a rule about a CIDR has entries about that CIDR alone, and about what it excepts. Otherwise it
// has entries about each named CIDR inside, whoever names that.
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

// Touched reports whether a rule set that endpoints have must be compiled again. Then what holds may change for endpoints that neither
// [Resolver.UpsertSubject] nor a change of policies is about: an identity or an address range is new to their rules.
func (r *Resolver) Touched() bool {
	r.settle()
	return len(r.touched) > 0 // a new rule set concerns only the endpoints that [Resolver.settle] gave it to
}

// Decision is what holds for one direction of an endpoint.
type Decision struct {
	Enforced *Compiled
	Audited  *Compiled // what would hold if policies in audit mode counted; nil when none of them speaks of it
}

// Compile says what holds for an endpoint. As long as nothing of it changes it returns the same pointers, for endpoints
// with the same policies as well. An endpoint that is not known has nil everywhere.
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

// Peer says whom the datapath takes an address of somebody with an identity for.
func (r *Resolver) Peer(number uint32, address netip.Addr) Peer {
	return Peer{Identity: number, Classes: r.ClassesOf(number), CIDRs: r.cidrs.around(address), Outside: policy.Outside.Includes(number, r.options)}
}
