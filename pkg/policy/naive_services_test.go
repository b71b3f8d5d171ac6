package policy_test

import (
	"strings"

	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// service evaluates the Services that an item names or selects. In an allow rule of a namespaced policy, an item without a namespace means Services of that
// namespace. Requirements narrow pods, not addresses.
func (n naive) service(p *cilium.Policy, item fields, deny, narrowedAsDeny bool) ternary {
	of, byName := item["k8sService"].(fields)
	selector, bySelector := fields(nil), false
	if !byName {
		of, _ = item["k8sServiceSelector"].(fields)
		selector, bySelector = of["selector"].(fields)
	}
	if byName && of["serviceName"] == nil || !byName && !bySelector {
		return untold
	}
	namespace, given := of["namespace"].(string)
	if !given && !deny {
		namespace = p.Namespace
	}
	if namespace == "" {
		return untold
	}
	result := no
	for _, s := range n.w.Services {
		if s.Namespace != namespace || byName && s.Name != of["serviceName"] || bySelector && !hasLabels(selector, pairs(s.Labelled)) {
			continue
		}
		switch {
		case s.Type == "ExternalName":
		case s.Selects == "":
			result = either(result, n.addressesOf(s))
		case n.isPodOf(s, deny) && n.meets(p.Namespace, narrowedAsDeny):
			result = either(result, yes)
		}
	}
	return result
}

// pairs parses "key=value,...".
func pairs(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			all[key] = value
		}
	}
	return all
}

// isPodOf reports whether the peer is a pod that a Service selects.
func (n naive) isPodOf(s *k8s.Service, deny bool) bool {
	labels := n.q.Peer.Labels
	for key, value := range pairs(s.Selects) {
		if deny && key == policytest.HiddenKey {
			continue
		}
		if got, found := labels["k8s:"+key]; !found || got != value {
			return false
		}
	}
	return labels["k8s:io.kubernetes.pod.namespace"] == s.Namespace
}

// addressesOf evaluates the addresses in the slices of a Service.
func (n naive) addressesOf(s *k8s.Service) ternary {
	result := no
	for _, slice := range n.w.Slices {
		if slice.Namespace != s.Namespace || slice.Service != s.Name {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			for _, addr := range endpoint.Addrs {
				length := "/128"
				if addr.Is4() {
					length = "/32"
				}
				result = either(result, n.cidr(addr.String()+length, nil))
			}
		}
	}
	return result
}
