package policy_test

import (
	"slices"
)

// cidrSet evaluates one CIDR, or the CIDRs of all groups that an item selects. For an empty selector the result is untold.
func (n naive) cidrSet(item fields) ternary {
	excepts := listOf(item["except"])
	if text, found := item["cidr"].(string); found {
		return n.cidr(text, excepts)
	}
	result := no
	selector, bySelector := item["cidrGroupSelector"].(fields)
	if bySelector && len(listOf(selector["matchExpressions"])) == 0 && selector["matchLabels"] == nil {
		return untold
	}
	for _, g := range n.w.Groups {
		if bySelector && !hasLabels(selector, g.Labels) || !bySelector && g.Name != item["cidrGroupRef"] {
			continue
		}
		for _, block := range g.CIDRs {
			result = either(result, n.cidr(block.String(), excepts))
		}
	}
	return result
}

// hasLabels reports whether labels match a selector.
func hasLabels(selector fields, labels map[string]string) bool {
	match, _ := selector["matchLabels"].(fields)
	for key, value := range match {
		if got, found := labels[key]; !found || got != value {
			return false
		}
	}
	for _, item := range listOf(selector["matchExpressions"]) {
		e := item.(fields)
		got, found := labels[e["key"].(string)]
		listed := found && slices.Contains(listOf(e["values"]), any(got))
		if !map[string]bool{"In": listed, "NotIn": !listed, "Exists": found, "DoesNotExist": !found}[e["operator"].(string)] {
			return false
		}
	}
	return true
}
