package policy_test

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// cidrSet judges one CIDR, or all of the groups that an item means. A selector that demands nothing means who knows what.
func (n naive) cidrSet(item fields) answer {
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

// services judges whether the peer is behind a Service that an item means, in a namespace of its own choice, or in that of the policy.
func (n naive) services(p *cilium.Policy, item fields, deny, narrowedAsDeny bool) answer {
	byName, named := item["k8sService"].(fields)
	byLabels, _ := item["k8sServiceSelector"].(fields)
	selector, _ := byLabels["selector"].(fields)
	if !named && len(listOf(selector["matchExpressions"])) == 0 && selector["matchLabels"] == nil {
		return untold
	}
	result := no
	for _, s := range n.w.Services {
		namespace, given := byLabels["namespace"]
		if named {
			namespace, given = byName["namespace"]
		}
		switch {
		case given && namespace != s.Namespace, !given && !deny && p.Namespace != "" && p.Namespace != s.Namespace:
			continue
		case named && byName["serviceName"] != s.Name, !named && !hasLabels(selector, written(s.AllLabels)):
			continue
		case s.Selects == "":
			for _, slice := range n.w.Slices {
				for _, e := range slice.Endpoints {
					if slice.Namespace == s.Namespace && slice.Service == s.Name {
						result = either(result, n.cidr(netip.PrefixFrom(e.Addrs[0], e.Addrs[0].BitLen()).String(), nil))
					}
				}
			}
			continue
		}
		match := fields{"k8s:io.kubernetes.pod.namespace": s.Namespace}
		for key, value := range written(s.Selects) {
			match["k8s:"+key] = value
		}
		hidden := untold // peers are not known by it
		if deny {
			hidden = yes
		}
		chosen := n.selects(fields{"matchLabels": match}, n.q.Peer.Labels, hidden)
		if chosen == yes && !n.meets(p.Namespace, narrowedAsDeny) {
			chosen = no
		}
		result = either(result, chosen)
	}
	return result
}

// written reads "key=value,...".
func written(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			all[key] = value
		}
	}
	return all
}

// hasLabels tells whether labels are as a selector wants them.
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
