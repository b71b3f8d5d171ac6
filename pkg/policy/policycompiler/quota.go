package policycompiler

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// BeyondQuota returns the prefixes without an identity for which no namespace that names them has quota left. quota is the number of prefixes that each
// namespace may name; prefixes with an identity count first, the others in the order of addresses. Cluster-wide policies and addresses of pods with named ports
// have no quota.
func (r *Resolver) BeyondQuota(quota int, has func(netip.Prefix) bool) map[netip.Prefix]bool {
	r.settle()
	beyond := map[string]map[netip.Prefix]bool{} // by namespace
	for namespace, named := range r.prefixes.of {
		if namespace != "" && len(named) > quota {
			beyond[namespace] = beyondQuota(named, quota, has)
		}
	}
	all := map[netip.Prefix]bool{}
	for _, some := range beyond {
		for prefix := range some {
			if _, ofPod := r.podPrefix[prefix]; !ofPod && !r.namedWithin(prefix, beyond) {
				all[prefix] = true
			}
		}
	}
	return all
}

func beyondQuota(named map[netip.Prefix]int, quota int, has func(netip.Prefix) bool) map[netip.Prefix]bool {
	var without []netip.Prefix
	for prefix := range named {
		if !has(prefix) {
			without = append(without, prefix)
		}
	}
	slices.SortFunc(without, netip.Prefix.Compare)
	free := max(0, quota-(len(named)-len(without)))
	beyond := map[netip.Prefix]bool{}
	for _, prefix := range without[min(free, len(without)):] {
		beyond[prefix] = true
	}
	return beyond
}

// namedWithin reports whether some namespace names a prefix within its quota.
func (r *Resolver) namedWithin(prefix netip.Prefix, beyond map[string]map[netip.Prefix]bool) bool {
	for namespace, named := range r.prefixes.of {
		if named[prefix] > 0 && !beyond[namespace][prefix] {
			return true
		}
	}
	return false
}

// Naming counts, for each policy, the prefixes of a set that its rules in use name.
func (r *Resolver) Naming(prefixes map[netip.Prefix]bool) map[policy.Ref]int {
	all := map[policy.Ref]int{}
	for ref, p := range r.policies {
		named := map[netip.Prefix]struct{}{}
		p.eachRule(func(rule *rule) {
			for _, c := range rule.cidrs {
				for _, prefix := range append([]netip.Prefix{c.prefix}, c.except...) {
					if prefixes[prefix] {
						named[prefix] = struct{}{}
					}
				}
			}
		})
		if len(named) > 0 {
			all[ref] = len(named)
		}
	}
	return all
}

// Policies returns the objects of the rules that the given entries name, in no order. If the result is too large, these are the objects of all rules.
func (c *Compiled) Policies(entries iter.Seq[Entry]) []policy.Ref {
	cookies := map[uint32]struct{}{} // there may be as many rules as entries: no search for the rule of each entry
	for e := range entries {
		cookies[e.Rule] = struct{}{}
	}
	refs := map[policy.Ref]struct{}{}
	for _, r := range c.rules {
		if _, named := cookies[r.cookie]; (named || c.tooLarge) && r.ref.Name != "" {
			refs[r.ref] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(refs))
}
