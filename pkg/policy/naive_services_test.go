package policy_test

import (
	"strings"

	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// service evaluates the Service that an item names. In an allow rule of a namespaced policy, an item without a namespace names a Service of that namespace.
func (n naive) service(p *cilium.Policy, item fields, deny bool) answer {
	named, byName := item["k8sService"].(fields)
	if !byName {
		return untold
	}
	namespace, given := named["namespace"].(string)
	if !given && !deny {
		namespace = p.Namespace
	}
	if namespace == "" || named["serviceName"] == nil {
		return untold
	}
	labels := n.q.Peer.Labels
	for _, s := range n.w.Services {
		if s.Namespace != namespace || s.Name != named["serviceName"] || s.Type == "ExternalName" || s.Selects == "" ||
			labels["k8s:io.kubernetes.pod.namespace"] != namespace {
			continue
		}
		chosen := true
		for pair := range strings.SplitSeq(s.Selects, ",") {
			key, value, _ := strings.Cut(pair, "=")
			got, found := labels["k8s:"+key]
			if deny && key == policytest.HiddenKey {
				continue
			}
			chosen = chosen && found && got == value
		}
		return of(chosen)
	}
	return no
}
