package policy_test

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// hasPeersOrPorts reports whether an item has a field of peers or ports.
func hasPeersOrPorts(rule fields, side string) bool {
	fields := []string{"toPorts", "icmps", side + "Endpoints", side + "CIDR", side + "CIDRSet", side + "Entities", side + "Nodes", side + "Groups",
		side + "Services"}
	return slices.ContainsFunc(fields, func(field string) bool { return rule[field] != nil })
}

// odd reports whether an item has a condition that cannot be checked: authentication, or a required label that is not part of identities.
func odd(rule fields, side string) bool {
	return requiresAuthentication(rule) || slices.ContainsFunc(listOf(rule[side+"Requires"]), aboutHidden)
}

func aboutHidden(selector any) bool {
	return wordsAbout(selector.(fields), policytest.HiddenKey) != silence
}

func requiresAuthentication(rule fields) bool {
	a, found := rule["authentication"].(fields)
	return found && a["mode"] != "disabled"
}

// namesOfTLS returns the items of toPorts with names of servers.
func namesOfTLS(rule fields) (items []any) {
	for _, item := range listOf(rule["toPorts"]) {
		if _, found := item.(fields)["serverNames"]; found {
			items = append(items, item)
		}
	}
	return items
}

// deniesUncheckable reports whether an allow item denies, because it allows only connections that cannot be distinguished from others. Another unsupported part
// of the item does not limit the deny.
func (n naive) deniesUncheckable(p *cilium.Policy, rule fields, side string) bool {
	if toPorts, found := rule["toPorts"]; found && toPorts == nil {
		return false
	}
	about := namesOfTLS(rule)
	if !requiresAuthentication(rule) && len(about) == 0 {
		return false
	}
	if _, found := rule[side+"Unknown"]; found {
		return true
	}
	if !hasPeersOrPorts(rule, side) {
		return false
	}
	n.meant = true
	ports := n.ports(rule, false)
	if ports != untold && !requiresAuthentication(rule) {
		ports = n.ports(fields{"toPorts": about}, false)
	}
	return ports != no && n.peers(p, rule, side, false, true) != no
}

// meets reports whether the peer has all labels that fromRequires or toRequires demand for the rules of a namespace.
func (n naive) meets(namespace string, deny bool) bool {
	section, side := "ingress", "from"
	if n.q.Direction == policy.Egress {
		section, side = "egress", "to"
	}
	if deny {
		section += "Deny"
	}
	for _, p := range n.w.Cilium {
		if !n.counts(p.Annotations) || deny && p.Namespace != "" && p.Namespace != namespace {
			continue
		}
		for _, spec := range specs(p) {
			_, odd := spec["during"]
			if !n.isFor(p, spec) || odd && deny {
				continue
			}
			for _, item := range listOf(spec[section]) {
				rule := item.(fields)
				demands := listOf(rule[side+"Requires"])
				if ports, found := rule["toPorts"]; found && ports == nil {
					if _, found := rule[side+"Requires"]; found && !deny {
						return false
					}
					continue
				}
				for _, demand := range demands {
					if aboutHidden(demand) {
						if !deny {
							return false
						}
						continue
					}
					if got := n.endpoint(p, demand.(fields), deny); got == no || got == untold && !deny {
						return false
					}
				}
			}
		}
	}
	return true
}

// isFor reports whether a spec selects the subject.
func (n naive) isFor(p *cilium.Policy, spec fields) bool {
	selector, found := spec["endpointSelector"].(fields)
	if p.Namespace != "" {
		selector = atHome(selector, p.Namespace)
	}
	return found && (p.Namespace == "" || p.Namespace == n.namespace()) && n.selects(selector, n.q.Subject.Labels, no) == yes
}
