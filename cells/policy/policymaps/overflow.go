package policymaps

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// overflow has the policies that do not fit into the maps.
type overflow struct {
	named  uint64                // [policycompiler.Resolver.Namings] for which beyond was computed; 0 for none
	beyond map[netip.Prefix]bool // prefixes that only namespaces without quota left name
	counts map[policy.Ref]int    // number of prefixes in beyond or without a slot that a policy names
	full   int                   // prefixes without a slot in the map cidrs, for which counts was computed
	namers uint64                // [policycompiler.Resolver.Namers] for which counts was computed
	texts  map[policy.Ref]string // text of the problem of a policy
	shown  map[policy.Ref]shownPolicy
}

// shownPolicy is a policy with the added problem that it does not fit into the maps.
type shownPolicy struct {
	of, is *policy.Policy
	text   string
}

// beyondQuota returns the prefixes that must not get an identity because their namespaces have used up their quota. The caller must have called
// [policycompiler.Resolver.NamedCIDRs].
func (c *controller) beyondQuota() map[netip.Prefix]bool {
	o := &c.overflow
	named := c.in.resolver.Namings()
	if o.named == named { // sorting the prefixes of a namespace that is beyond its quota must not delay each round
		return o.beyond
	}
	o.named, o.beyond, o.counts = named, nil, nil
	if quota := c.Config.NamespaceCIDRs; quota > 0 {
		o.beyond = c.in.resolver.BeyondQuota(quota, func(p netip.Prefix) bool { return c.cidrs.numbers[p] != 0 })
	}
	return o.beyond
}

// findOverflow computes the problems of the policies that do not fit into the maps.
func (c *controller) findOverflow() {
	o := &c.overflow
	if namers := c.in.resolver.Namers(); o.counts == nil || o.full != len(c.cidrs.full) || o.namers != namers {
		o.namers = namers
		without := maps.Clone(c.cidrs.full)
		maps.Copy(without, o.beyond)
		o.counts, o.full = map[policy.Ref]int{}, len(c.cidrs.full)
		if len(without) > 0 {
			o.counts = c.in.resolver.Naming(without)
		}
	}
	texts := make(map[policy.Ref]string, len(o.counts))
	for ref, n := range o.counts {
		remedy := fmt.Sprintf("the policies of a namespace may name %d on a node; name fewer or wider ones, or raise --policy-cidrs-per-namespace",
			c.Config.NamespaceCIDRs)
		if o.full > 0 {
			remedy = "the map cidrs of this node is full; name fewer or wider ones, or raise --bpf-cidr-map-max"
		}
		texts[ref] = fmt.Sprintf("%d of its address ranges are not in force: rules about them allow nothing and deny all peers; %s", n, remedy)
	}
	for _, id := range slices.Sorted(maps.Keys(c.store.byID)) { // so that equal inputs give equal texts
		h := c.store.byID[id]
		text := c.overflowOf(h)
		if text == "" {
			continue
		}
		for _, ref := range h.target.Policies(h.added) {
			if texts[ref] == "" {
				texts[ref] = text
			}
		}
	}
	for compiled := range c.views.compiled {
		for _, ref := range compiled.ExceedsConditions() {
			if texts[ref] == "" {
				texts[ref] = fmt.Sprintf("with the other policies of its endpoints, it has more than %d conditions in fromRequires or toRequires: "+
					"allow rules of these endpoints allow no peer that they select by labels, or no condition narrows their deny rules; use fewer conditions, "+
					"or fewer policies for one endpoint", policy.MaxConditions)
			}
		}
	}
	for _, some := range []map[policy.Ref]string{texts, o.texts} {
		for ref := range some {
			if texts[ref] != o.texts[ref] {
				c.in.unshown[ref] = true
			}
		}
	}
	o.texts = texts
}

// overflowOf describes why an id does not fit and what its endpoints have instead; "" if it fits, or if another error prevents it.
func (c *controller) overflowOf(h *mapPolicy) string {
	if h.target == nil {
		return ""
	}
	kept := "endpoints keep the policy that they had, and new ones are cut off"
	switch {
	case c.beyondLimit(h.target):
		kept = "endpoints keep the policy that they had or, if it may lack denies or does not isolate them as it must, are cut off, like new ones"
	case c.oversized(h.target):
		kept = "endpoints keep the policy that they had, and new ones and those without one are cut off"
	}
	switch {
	case errors.Is(h.err, errRules):
		return fmt.Sprintf("with the other policies of its endpoints, it has more than %s: %s; have fewer or wider rules, or fewer policies for one endpoint",
			h.target.Exceeded(), kept)
	case errors.Is(h.err, errQuota):
		return fmt.Sprintf("the policies of a namespace may have %d entries and %d ranges of ports on this node: %s; have fewer or wider rules, or raise "+
			"--policy-entries-per-namespace", c.store.quota.entries, c.store.quota.ranges, kept)
	case errors.Is(h.err, errFull):
		return "its entries do not fit into the maps of this node: " + kept + "; have fewer or wider rules, or raise --bpf-policy-map-max"
	}
	return ""
}

// show returns a policy with its overflow among its problems.
func (o *overflow) show(p *policy.Policy) *policy.Policy {
	text := o.texts[p.Ref]
	if text == "" {
		delete(o.shown, p.Ref)
		return p
	}
	if s := o.shown[p.Ref]; s.of == p && s.text == text {
		return s.is
	}
	is := *p
	is.Problems = append([]policy.Problem{{Path: "spec", Reason: policy.ReasonOverflow, Message: text}}, p.Problems...)
	if o.shown == nil {
		o.shown = map[policy.Ref]shownPolicy{}
	}
	o.shown[p.Ref] = shownPolicy{p, &is, text}
	return &is
}
