package policymaps

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// An endpoint whose policy is beyond the quota of its namespace keeps the previous policy without a time limit. Meanwhile ranges that no policy names any longer
// are removed from the map, except ranges in entries of the previous policy: otherwise one tenant could fill the map by naming other ranges again and again.
func TestRetiredRanges_AreRemovedBesideOutdatedPolicy(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.store.capacity, w.store.quota = capacity{1000, 1000}, capacity{30, 30}
	w.cidrs.capacity = 25
	rules, kept := rw(w.KubernetesPolicies), netip.MustParsePrefix("50.9.0.0/32")
	of := func(id uint16) *endpointpolicies.EndpointPolicy {
		row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
		require.True(t, found)
		return row
	}
	rounds := func() {
		for range 4 {
			w.problems = nil
			w.failingRound()
			for id := range uint16(11) {
				w.apply(t, id, reconciler.StatusDone())
			}
		}
	}
	inMap := func() map[netip.Prefix]uint32 { return w.Entries.(fakeEntries).cidrs }

	put(t, w.DB, rules, addresses("ns-5", "p", "app-5", 9, 1))
	w.step(t)
	before := of(6)
	put(t, w.DB, rules, &k8s.NetworkPolicy{Namespace: "ns-5", Name: "p", IsEgress: true, PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": "app-5"}},
		Egress: []k8s.PolicyRule{{Ports: oddPorts(31)}}})
	rounds()
	require.Contains(t, of(6).Error, "--policy-entries-per-namespace")
	require.Equal(t, before.Egress, of(6).Egress)

	for x := range byte(4) {
		put(t, w.DB, rules, addresses("ns-6", "others", "app-6", x, 20))
		rounds()
		require.Empty(t, of(7).Error)
		require.Empty(t, w.problemsOf(t, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-6", Name: "others"}), "replaced %d times", x)
		require.Contains(t, inMap(), netip.MustParsePrefix(fmt.Sprintf("50.%d.0.19/32", x)))
		require.Contains(t, inMap(), kept)
		require.Len(t, inMap(), 21)
	}
	put(t, w.DB, rules, addresses("ns-5", "p", "app-5", 8, 1))
	rounds()
	w.step(t)
	require.Empty(t, of(6).Error)
	require.NotContains(t, inMap(), kept)
	require.Len(t, inMap(), 21)
}
