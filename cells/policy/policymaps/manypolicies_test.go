package policymaps

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Each policy is within the limits of one policy, but several select one endpoint. Together they are not compiled: the endpoint keeps its previous policy, all
// of them have a problem, and other endpoints are not affected. Without one of them, the others are in force.
func TestTooManyPolicies_KeepPrevious(t *testing.T) {
	t.Parallel()
	every := k8s.Peer{Namespaces: &k8s.Selector{}, Pods: &k8s.Selector{Expressions: []k8s.Expression{{Key: "nope", Operator: "DoesNotExist"}}}}
	for name, c := range map[string]struct {
		policies int
		rules    func(i int) []k8s.PolicyRule
		want     string
	}{
		"pairs": {5, func(int) []k8s.PolicyRule {
			return slices.Repeat([]k8s.PolicyRule{{Peers: []k8s.Peer{every}, Ports: oddPorts(1000)}}, 5)
		}, "2097152 pairs of a port and a peer of one rule"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBench(t, 100, 0)
			w.in.resolver.SetLimit(1<<17, 1<<15)
			rules := rw(w.KubernetesPolicies)
			object := func(i int, list ...k8s.PolicyRule) *k8s.NetworkPolicy {
				return &k8s.NetworkPolicy{Namespace: "ns-5", Name: fmt.Sprint("p", i), IsIngress: true, PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": "app-5"}},
					Ingress: list}
			}
			of := func(id uint16) *endpointpolicies.EndpointPolicy {
				row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
				require.True(t, found)
				return row
			}
			ref := func(i int) policy.Ref {
				return policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-5", Name: fmt.Sprint("p", i)}
			}
			put(t, w.DB, rules, object(0, k8s.PolicyRule{Ports: oddPorts(2)}))
			w.step(t)
			before := of(6)
			require.Greater(t, before.Ingress.Enforced.ID, uint32(1))
			entries, _ := w.cost()

			for i := range c.policies {
				put(t, w.DB, rules, object(i, c.rules(i)...))
			}
			w.failingRound()
			w.failingRound()
			require.Equal(t, before.Ingress, of(6).Ingress)
			require.Contains(t, of(6).Error, c.want)
			require.Empty(t, of(7).Error)
			for i := range c.policies {
				problems := w.problemsOf(t, ref(i))
				require.Len(t, problems, 1)
				require.Equal(t, policy.ReasonOverflow, problems[0].Reason)
				require.Contains(t, problems[0].Message, c.want)
			}
			now, _ := w.cost()
			require.LessOrEqual(t, now, entries)

			for i := range c.policies {
				put(t, w.DB, rules, object(i, k8s.PolicyRule{Ports: oddPorts(3)}))
			}
			for range 3 {
				w.problems = nil
				w.failingRound()
				w.apply(t, 6, reconciler.StatusDone())
			}
			w.step(t)
			require.Empty(t, of(6).Error)
			for i := range c.policies {
				require.Empty(t, w.problemsOf(t, ref(i)))
			}
		})
	}
}

// More conditions than all policies of an endpoint may have are reported on the policies that have some, and only while they are too many.
func TestTooManyConditions_AreReported(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string]string{"allow": "", "deny": "Deny"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBench(t, 10, 0)
			table := rw[*cilium.Policy](w.CiliumPolicies)
			object := func(i, conditions int) *cilium.Policy {
				var list []string
				for k := range conditions {
					list = append(list, fmt.Sprintf(`{"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["%d-%d"]}]}`, i, k))
				}
				return rulesOf("", fmt.Sprint("p", i), "app-5", `"ingress`+deny+`": [{"fromEndpoints": [{}], "fromRequires": [`+strings.Join(list, ", ")+`]}]`)
			}
			ref := func(i int) policy.Ref { return policy.Ref{Kind: policy.Clusterwide, Name: fmt.Sprint("p", i)} }
			for i := range 2 {
				put(t, w.DB, table, object(i, 90))
			}
			put(t, w.DB, table, rulesOf("", "other", "app-5", `"ingress": [{"fromEndpoints": [{}]}]`))
			w.step(t)
			for i := range 2 {
				require.Empty(t, w.problemsOf(t, ref(i)))
			}
			put(t, w.DB, table, object(2, 90))
			w.step(t)
			for i := range 3 {
				problems := w.problemsOf(t, ref(i))
				require.Len(t, problems, 1)
				require.Equal(t, policy.ReasonOverflow, problems[0].Reason)
				require.Contains(t, problems[0].Message, "more than 200 conditions")
			}
			require.Empty(t, w.problemsOf(t, policy.Ref{Kind: policy.Clusterwide, Name: "other"}))
			put(t, w.DB, table, object(2, 5))
			w.step(t)
			for i := range 3 {
				require.Empty(t, w.problemsOf(t, ref(i)))
			}
		})
	}
}
