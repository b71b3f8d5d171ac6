package install

import (
	"maps"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// TestPermissions_AreExact checks that each line names a known resource, existing verbs, and a reason.
func TestPermissions_AreExact(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, r := range kubeapi.Resources() {
		known[r.GroupVersion.Group+"/"+r.Plural] = true
	}
	for _, resource := range []string{"/nodes/status", "cilium.io/ciliumnetworkpolicies/status", "cilium.io/ciliumclusterwidenetworkpolicies/status",
		"networking.k8s.io/ingresses"} { // the last one is of the previous build
		known[resource] = true
	}
	type use struct {
		account                     Account
		cell, group, resource, verb string
	}
	seen := map[use]bool{}
	for _, p := range Permissions() {
		if !known[p.Group+"/"+p.Resource] {
			t.Errorf("%s of group %q is nothing that the client knows", p.Resource, p.Group)
		}
		if p.Cell == "" || p.Why == "" || p.Account != Agent && p.Account != Cluster || len(p.Verbs) == 0 {
			t.Errorf("unfinished line: %+v", p)
		}
		for _, verb := range p.Verbs {
			u := use{p.Account, p.Cell, p.Group, p.Resource, verb}
			if !slices.Contains(verbs, verb) || seen[u] {
				t.Errorf("verb is unknown or doubled: %+v", u)
			}
			seen[u] = true
		}
		if len(p.Names) > 0 && slices.Contains(p.Verbs, "create") {
			t.Errorf("%+v: create cannot be limited to names", p)
		}
	}
}

// TestRoles_AllowTheTable checks that the rendered roles contain exactly the table.
func TestRoles_AllowTheTable(t *testing.T) {
	t.Parallel()
	all := objects(t, usual("rbac"))
	granted := map[[4]string]bool{}
	grant := func(account Account, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				granted[[4]string{string(account), r.APIGroups[0], r.Resources[0], verb}] = true
			}
		}
	}
	grant(Agent, all["ClusterRole waggle"].(*rbacv1.ClusterRole).Rules)
	grant(Cluster, all["ClusterRole waggle-cluster"].(*rbacv1.ClusterRole).Rules)
	grant(Cluster, all["Role waggle-cluster"].(*rbacv1.Role).Rules)
	for _, p := range Permissions() {
		for _, verb := range p.Verbs {
			key := [4]string{string(p.Account), p.Group, p.Resource, verb}
			if _, found := granted[key]; !found {
				t.Errorf("not granted: %v", key)
			}
			granted[key] = false
		}
	}
	for key, unexplained := range granted {
		if unexplained {
			t.Errorf("granted without a line in the table: %v", key)
		}
	}
}

// TestAgent_WritesObjectsOfItsNode checks that an admission policy compares the node of each object that an agent may write. Identities have no node, and
// agents write no CiliumEndpointSlices.
func TestAgent_WritesObjectsOfItsNode(t *testing.T) {
	t.Parallel()
	var rules []admissionv1.NamedRuleWithOperations
	for _, name := range []string{"waggle-own-node", "waggle-own-events"} {
		policy := objects(t, usual("admission"))["ValidatingAdmissionPolicy "+name].(*admissionv1.ValidatingAdmissionPolicy)
		rules = append(rules, policy.Spec.MatchConstraints.ResourceRules...)
	}
	compares := func(group, resource string, operation admissionv1.OperationType) bool {
		return slices.ContainsFunc(rules, func(r admissionv1.NamedRuleWithOperations) bool {
			return len(r.ResourceNames) == 0 && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Operations, operation)
		})
	}
	written := map[string]bool{}
	for _, p := range Permissions() {
		for _, verb := range p.Verbs {
			operation, writes := map[string]admissionv1.OperationType{"create": admissionv1.Create, "update": admissionv1.Update, "patch": admissionv1.Update,
				"delete": admissionv1.Delete}[verb]
			if p.Account != Agent || !writes {
				continue
			}
			written[p.Resource] = true
			if !compares(p.Group, p.Resource, operation) && p.Resource != "ciliumidentities" {
				t.Errorf("an agent may %s %s of other nodes", verb, p.Resource)
			}
		}
	}
	want := map[string]bool{"nodes": true, "nodes/status": true, "ciliumnodes": true, "ciliumendpoints": true, "ciliumidentities": true, "events": true}
	if !maps.Equal(written, want) {
		t.Errorf("agents may write %v, want %v", written, want)
	}
}
