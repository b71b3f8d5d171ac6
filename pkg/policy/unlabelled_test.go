package policy_test

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// An endpoint without labels is not a special case: it is open until a policy isolates it, and only a clusterwide policy can select it. Cilium always
// isolates it (reserved:init). In Waggle an endpoint may never have labels, without Kubernetes.
func TestEvaluate_EndpointWithoutLabels_IsNotSpecial(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policies string
		mode     policy.Mode
		want     policy.Verdict
	}{
		"no policy":                    {"", policy.Default, policy.Allow},
		"policies of a namespace":      {netpol("podSelector: {}") + cnp("endpointSelector: {}, ingress: [{}]"), policy.Default, policy.Allow},
		"a policy of the cluster":      {ccnp("endpointSelector: {}, ingress: [{}]"), policy.Default, policy.Deny},
		"every endpoint is isolated":   {"", policy.Always, policy.Deny},
		"and opened by one of cluster": {ccnp("endpointSelector: {}, ingress: [{fromEntities: [cluster]}]"), policy.Always, policy.Allow},
	} {
		q := ask(t, "in web>init 80/TCP", 0)
		q.Subject.Labels = nil // labels of an identity are not labels of the endpoint
		if q.Subject.Identity != identity.Init {
			t.Fatal("it is another identity that endpoints without labels have")
		}
		if got := policy.Evaluate(read(t, policy.Environment{}, c.policies), policy.Options{Mode: c.mode}, q); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}
