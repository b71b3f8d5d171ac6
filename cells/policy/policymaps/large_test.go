package policymaps

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// oddPorts returns n ports that no two of them can share an entry.
func oddPorts(n int) (ports []k8s.PolicyPort) {
	for i := range n {
		ports = append(ports, k8s.PolicyPort{Protocol: "TCP", Port: fmt.Sprint(2*i + 1)})
	}
	return ports
}

// A policy with as many rules as entries is named without work for each pair of a rule and an entry. The names are found once, not with each attempt to write a
// policy that does not fit.
func TestName_ManyRules_NoWorkPerEntry(t *testing.T) {
	const entries = 5000
	w := newBench(t, 10, 0)
	p := &k8s.NetworkPolicy{Namespace: "ns-5", Name: "many", IsIngress: true}
	for _, port := range oddPorts(entries) {
		p.Ingress = append(p.Ingress, k8s.PolicyRule{Ports: []k8s.PolicyPort{port}})
	}
	put(t, w.DB, rw(w.KubernetesPolicies), p)
	w.step(t)
	var h *mapPolicy
	for _, one := range w.store.byID {
		h = one
	}
	require.Equal(t, []string{"NetworkPolicy ns-5/many"}, h.policies)

	fresh := &mapPolicy{id: h.id + 1, target: h.target, broken: true, change: h.target.Diff(nil)}
	require.Less(t, testing.AllocsPerRun(10, fresh.name), entries/10.0)
	require.Equal(t, h.policies, fresh.policies)
	w.store.capacity = w.store.used()
	w.store.apply(fresh)
	require.ErrorIs(t, fresh.err, errFull)
	marker := []string{"found before"}
	fresh.policies = marker
	w.store.apply(fresh)
	require.ErrorIs(t, fresh.err, errFull)
	require.Equal(t, marker, fresh.policies)
}

// A rule that selects each identity of the cluster by itself needs an entry for each of them and each of its ports. A policy with more entries than the maps hold
// has none: the endpoint keeps its previous policy, the object has a problem, and attempts cost nothing. Once it fits, it is published.
func TestTooLargePolicy_KeepsPrevious(t *testing.T) {
	t.Parallel()
	w := newBench(t, 100, 0)
	w.store.capacity = capacity{1000, 1000}
	w.in.resolver.SetLimit(1000, 1000)
	rules := rw(w.KubernetesPolicies)
	absent := k8s.Peer{Namespaces: &k8s.Selector{}, Pods: &k8s.Selector{Expressions: []k8s.Expression{{Key: "nope", Operator: "DoesNotExist"}}}}
	large := func(ports int) *k8s.NetworkPolicy {
		return &k8s.NetworkPolicy{Namespace: "ns-5", Name: "large", IsIngress: true, PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": "app-5"}},
			Ingress: []k8s.PolicyRule{{Peers: []k8s.Peer{absent}, Ports: oddPorts(ports)}}}
	}
	of := func() *endpointpolicies.EndpointPolicy {
		row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(6))
		require.True(t, found)
		return row
	}
	ref := policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-5", Name: "large"}
	put(t, w.DB, rules, large(2))
	w.step(t)
	before := of()
	require.Greater(t, before.Ingress.Enforced.ID, uint32(1))

	put(t, w.DB, rules, large(1000))
	for range 3 {
		w.failingRound()
		require.Equal(t, before.Ingress, of().Ingress)
		require.ErrorContains(t, errors.New(of().Error), "it needs more than the 1000 entries")
		require.ErrorContains(t, errors.New(of().Error), ref.String(), "its name")
		require.Equal(t, policy.ReasonOverflow, w.problemsOf(t, ref)[0].Reason)
		for _, h := range w.store.byID {
			require.Empty(t, h.change)
		}
	}
	put(t, w.DB, rules, large(3))
	for range 3 { // the id of the large one is removed when the endpoint has the new one
		w.failingRound()
		w.apply(t, 6, reconciler.StatusDone())
	}
	w.step(t)
	require.Empty(t, of().Error)
	require.Empty(t, w.problemsOf(t, ref))
	entries, _ := w.cost()
	require.GreaterOrEqual(t, entries, 3*100)
}

// It is not known which identities a policy denies that is too large: it counts as one that denies some if a rule denies.
func TestDeniesIdentities_TooLarge(t *testing.T) {
	t.Parallel()
	const allow = `"ingress": [{"fromEndpoints": [{"matchLabels": {"app": "app-0"}}, {"matchLabels": {"app": "app-1"}}]}]`
	for rules, want := range map[string]bool{allow: false, allow + `, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "app-2"}}]}]`: true} {
		w := newBench(t, 2, 0)
		w.in.resolver.SetLimit(1, 1)
		put(t, w.DB, rw[*cilium.Policy](w.CiliumPolicies), rulesOf("", "p", "app-0", rules))
		w.failingRound()
		ingress, _ := w.in.resolver.Compile(1)
		require.True(t, ingress.Enforced.TooLarge())
		require.Equal(t, want, deniesIdentities(ingress.Enforced), "%s", rules)
	}
}
