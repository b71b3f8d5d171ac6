package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

func TestPolicies_OfAllKinds(t *testing.T) {
	t.Parallel()
	got, ignored, err := Policies([]byte(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one, namespace: red, annotations: {policy.waggle.io/mode: audit}}
spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}
---
apiVersion: v1
kind: List
items:
- apiVersion: cilium.io/v2
  kind: CiliumNetworkPolicy
  metadata: {name: two}
  spec: {endpointSelector: {}, egress: [{toFQDNs: [{matchName: example.org}]}]}
- {apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: three}, specs: [{endpointSelector: {}, ingress: [{}]}]}
- {apiVersion: v1, kind: Namespace, metadata: {name: red}}
- {apiVersion: v1, kind: Secret, metadata: {name: x, namespace: red}}
`), policy.Environment{})
	if err != nil || len(got) != 3 {
		t.Fatalf("%v: %v", got, err)
	}
	if !slices.Equal(ignored, []string{"Namespace red", "Secret red/x"}) {
		t.Errorf("ignored: %q", ignored)
	}
	for i, want := range []string{"NetworkPolicy red/one", "CiliumNetworkPolicy default/two", "CiliumClusterwideNetworkPolicy three"} {
		if got[i].Ref.String() != want || got[i].Audit != (i == 0) || (len(got[i].Problems) > 0) != (i == 1) {
			t.Errorf("policy %d is %s, audit %t, problems %v", i, got[i].Ref, got[i].Audit, got[i].Problems)
		}
	}
}

func TestPolicies_Errors(t *testing.T) {
	t.Parallel()
	const good = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a}, spec: {endpointSelector: {}}}\n"
	for name, c := range map[string]struct{ text, want string }{
		"no YAML": {good + "---\na: [", "line 3"},
		"twice":   {good + "---\n" + good, "line 3: CiliumNetworkPolicy default/a is already on line 1"},
		"no name": {"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, spec: {endpointSelector: {}}}", "metadata.name"},
	} {
		if _, _, err := Policies([]byte(c.text), policy.Environment{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzPolicies checks that Policies returns either policies or an error, and that every policy has a name.
func FuzzPolicies(f *testing.F) {
	f.Add("{kind: List, items: [{kind: NetworkPolicy}]}")
	f.Add("---\n---\nnull\n--- a")
	f.Add("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}, ingress: [{from: [{}]}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		policies, ignored, err := Policies([]byte(text), policy.Environment{})
		if err != nil && (policies != nil || ignored != nil) {
			t.Fatal("policies beside an error")
		}
		for _, p := range policies {
			if p.Ref.Name == "" || (p.Ref.Namespace == "") != (p.Ref.Kind == policy.Clusterwide) {
				t.Fatalf("a policy without a name: %+v", p)
			}
		}
	})
}
