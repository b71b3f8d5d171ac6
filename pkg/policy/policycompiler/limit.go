package policycompiler

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Limits for the rules of all policies of one subject in one direction, and of all subjects of one namespace. A policy has limits of its own (see the package
// policy), but a tenant can create many policies. Beyond a limit, the result is [Compiled.TooLarge].
const (
	// maxPairs limits the pairs of a port of a rule and a peer of it: an identity, a class, a CIDR, or an exception of any rule inside the CIDR. Each pair takes
	// memory and time, even where several rules share one entry. A rule without ports counts once for each peer. Where [Resolver.SetLimit] allows many entries,
	// the limit is pairsPerEntry for each of them: rules whose entries fit must not be beyond it.
	maxPairs      = 1 << 21
	pairsPerEntry = 16
	// peersPerPair times the limit of pairs limits the peers that all policies of one namespace select by labels: see [account].
	peersPerPair = 2
)

// limits are the limits of one subject, and the limit of one account.
type limits struct{ pairs, peers int }

// exceeded names the limit of one subject that a rule set exceeds. It returns "" if there is none.
func (set *ruleset) exceeded(r *Resolver) string {
	if _, released := r.unselected[set]; released {
		of := "the policies of its namespace"
		if set.namespace == "" {
			of = "cluster-wide policies"
		}
		return fmt.Sprintf("%d peers in different selections by labels of %s", r.limits.peers, of)
	}
	if set.pairs(r) > r.limits.pairs {
		return fmt.Sprintf("%d pairs of a port and a peer of one rule", r.limits.pairs)
	}
	return ""
}

// visitsPerPair is the number of identities of pods, or of names at them, that [Resolver.servedTo] compares with a rule in about the time that one pair takes.
const visitsPerPair = 16

// pairs counts the pairs of a port and a peer of one rule, without visiting the peers. See [maxPairs].
func (set *ruleset) pairs(r *Resolver) (all int) {
	for i, rule := range set.rules {
		peers := 0
		for _, s := range rule.selectors {
			peers += len(s.identities) + len(s.classes)
		}
		all += peers * set.ports(i)
		if set.peersNamed && len(rule.named) > 0 {
			all += set.served(r, rule)
		}
	}
	if r.nested {
		return all + set.exceptions
	}
	for _, use := range set.cidrs {
		all += len(r.cidrs.within(use.prefix)) * set.ports(use.rule)
	}
	return all
}

// served counts the pairs of a named port of a rule and an identity without a selector of its own, or a pod by its address, and the visits of
// [Resolver.servedTo].
func (set *ruleset) served(r *Resolver, rule *rule) (all int) {
	members, visits := 0, len(r.podsOf)*len(rule.named)
	switch {
	case rule.Peers.Any:
		members = len(r.podsOf)
	default:
		for _, s := range rule.selectors {
			for _, number := range s.classes {
				members += r.selectors.byNumber[number].members
			}
		}
		if members == 0 && len(rule.cidrs) == 0 {
			return 0
		}
		if len(rule.cidrs) == 0 {
			visits = len(r.podsOf) + min(members, len(r.podsOf))*len(rule.named)
		}
	}
	for _, named := range rule.named {
		by := r.serving[named]
		all += min(members, by.identities)
		if len(rule.cidrs) > 0 {
			all += by.pods
		}
	}
	return all + visits/visitsPerPair
}

// ports returns the number of ports of a rule, at least 1. Named ports of an ingress rule are among the ports of its effect.
func (set *ruleset) ports(rule int) int {
	ports := len(set.effects[rule].ports)
	if set.direction == policy.Egress {
		ports += len(set.rules[rule].named)
	}
	return max(1, ports)
}

// countExceptions counts the pairs of a port of a rule and a CIDR of it, or an exception of any rule inside the CIDR.
func (set *ruleset) countExceptions() (all int) {
	stops := newNamedCIDRs()
	for _, use := range set.cidrs {
		for _, except := range use.except {
			stops.number[except] = 1
		}
	}
	stops.sortAll()
	for _, use := range set.cidrs {
		all += (1 + len(stops.within(use.prefix))) * set.ports(use.rule)
	}
	return all
}

// size is a number of entries of the maps policy and policy_ranges.
type size struct{ entries, ranges int }

// exceeds reports whether a size is above a limit; a limit of 0 is none.
func (s size) exceeds(limit size) bool {
	return limit.entries > 0 && s.entries > limit.entries || limit.ranges > 0 && s.ranges > limit.ranges
}

// SetLimit sets the largest number of entries of one result for the map policy and for policy_ranges; 0 for no limit. It must be called before the first
// Compile. A result with more is [Compiled.TooLarge].
func (r *Resolver) SetLimit(entries, ranges int) {
	r.limit, r.limits.pairs = size{entries, ranges}, max(maxPairs, pairsPerEntry*entries)
	r.limits.peers = peersPerPair * r.limits.pairs
}

// ruleCookies holds the cookies of the rules of a rule set, and counts the entries that are built with them. Beyond the limit no entries are built: a few rules
// can have millions, one for each port and each selected identity.
type ruleCookies struct {
	of    []uint32 // by index of the rule, followed by [CookieNotIsolated]
	limit size
	built size // since the rule set was last compiled
}

func (c *ruleCookies) count(entries []entry) []entry {
	for _, e := range entries {
		if (Key{PortBits: e.bits}).IsRange() {
			c.built.ranges++
		} else {
			c.built.entries++
		}
	}
	return entries
}

func (c *ruleCookies) exceeded() bool { return c.built.exceeds(c.limit) }

// completed returns c without entries if it is a new result above the limit.
func (set *ruleset) completed(c *Compiled) *Compiled {
	if c.allowsAll || c == set.compiled {
		return c // shared
	}
	c.namespace, c.conditions = set.namespace, set.conditions
	entries, ranges := c.Len()
	if (size{entries, ranges}).exceeds(set.cookies.limit) || set.cookies.exceeded() {
		c.groups, c.tooLarge = nil, true
	}
	return c
}

// TooLarge reports whether the policies need more entries than [Resolver.SetLimit] allows, or have more rules than a subject may have: see [Compiled.Exceeded].
// Then there are no entries, and [Compiled.Len] is the number of entries that were counted before the limit was exceeded.
func (c *Compiled) TooLarge() bool { return c.tooLarge }

// Exceeded names the limit of one subject that the rules exceed, with the largest number: "2097152 pairs of a port and a peer of one rule". It returns ""
// if there is none.
func (c *Compiled) Exceeded() string { return c.exceeded }

// ExceedsConditions lists the policies whose conditions on peers, together more than [policy.MaxConditions], are not met: see [policy.Requirements]. The caller
// must not change the list.
func (c *Compiled) ExceedsConditions() []policy.Ref { return c.conditions }

// Denies reports whether a rule denies.
func (c *Compiled) Denies() bool {
	return slices.ContainsFunc(c.rules, func(r *rule) bool { return r.Deny })
}

// DeniesByLabels reports whether a rule denies peers by labels or by the name of their port. Then a new peer may need entries, also if there are none yet.
func (c *Compiled) DeniesByLabels() bool {
	return slices.ContainsFunc(c.rules, func(r *rule) bool {
		return r.Deny && (r.Direction == policy.Egress && len(r.named) > 0 || slices.ContainsFunc(r.Peers.List, func(p policy.Peer) bool { return p.Labels != nil }))
	})
}

// DeniesBeyond reports whether a rule denies that o does not have, or has with other contents. o may be nil.
func (c *Compiled) DeniesBeyond(o *Compiled) bool {
	have := map[uint32][]*rule{} // by cookie; rules at the same path share it
	if o != nil {
		for _, r := range o.rules {
			have[r.cookie] = append(have[r.cookie], r)
		}
	}
	return slices.ContainsFunc(c.rules, func(r *rule) bool {
		return r.Deny && !slices.ContainsFunc(have[r.cookie], func(had *rule) bool { return had == r || reflect.DeepEqual(had.Rule, r.Rule) })
	})
}

// sameRules reports whether c and o, one of which is too large, mean the same.
func (c *Compiled) sameRules(o *Compiled) bool {
	return c.tooLarge == o.tooLarge && c.exceeded == o.exceeded && c.isolated == o.isolated && c.nested == o.nested && c.namespace == o.namespace &&
		slices.Equal(c.conditions, o.conditions) && slices.Equal(c.rules, o.rules)
}
