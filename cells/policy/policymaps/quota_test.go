package policymaps

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func TestEntryQuota(t *testing.T) {
	t.Parallel()
	all := capacity{65536, 16384}
	for n, want := range map[int]capacity{-1: {32768, 8192}, 0: {}, 1: {1, 1}, 1000: {1000, 250}, 1 << 20: {1 << 20, 1 << 18}} {
		require.Equal(t, want, Config{NamespaceEntries: n}.entryQuota(all), n)
	}
	require.Equal(t, capacity{32768, 8192}, DefaultConfig.entryQuota(all))
	require.Equal(t, capacity{1, 1}, DefaultConfig.entryQuota(capacity{1, 0}))
}

// A namespace that wants more entries than its quota does not take them from others, which do not wait for it: another namespace gets its first policy, a new
// identity is announced, and a new range is written. Its endpoint keeps the policy that it had. If that policy may lack denies about new peers, the endpoint is cut
// off instead. When its policies fit again, it gets them.
func TestEntryQuota_OthersDoNotWait(t *testing.T) {
	t.Parallel()
	const deny = `, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "app-5"}}]}]`
	for name, c := range map[string]struct {
		rules string // in addition to the rules that exceed the quota
		large bool   // beyond the limit of the resolver
	}{
		"allows": {"", false}, "denies": {deny, false}, "too large": {"", true}, "too large and denies": {deny, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBench(t, 10, 0)
			w.store.capacity, w.store.quota = capacity{40, 10}, capacity{10, 2}
			if c.large {
				w.in.resolver.SetLimit(20, 20)
			}
			table, rules := rw[*cilium.Policy](w.CiliumPolicies), rw(w.KubernetesPolicies)
			tenant := func(ports int) *cilium.Policy {
				list := `{"port": "1", "protocol": "TCP"}`
				for i := range ports - 1 {
					list += fmt.Sprintf(`, {"port": "%d", "protocol": "TCP"}`, 2*i+3)
				}
				return rulesOf("ns-5", "many", "app-5", `"ingress": [{"toPorts": [{"ports": [`+list+`]}]}]`+c.rules)
			}
			of := func(id uint16) *endpointpolicies.EndpointPolicy {
				row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
				require.True(t, found)
				return row
			}
			rounds := func() {
				for range 6 {
					w.problems = nil
					w.failingRound()
					for id := range uint16(11) {
						w.apply(t, id, reconciler.StatusDone())
					}
				}
			}
			ref := policy.Ref{Kind: policy.Cilium, Namespace: "ns-5", Name: "many"}
			put(t, w.DB, table, tenant(2))
			w.step(t)
			before := of(6)
			require.Greater(t, before.Ingress.Enforced.ID, uint32(1))

			put(t, w.DB, table, tenant(38))
			rounds()
			require.LessOrEqual(t, w.store.usedBy("ns-5").entries, 10)
			require.Contains(t, of(6).Error, "--policy-entries-per-namespace")
			problems := w.problemsOf(t, ref)
			require.Len(t, problems, 1)
			require.Equal(t, policy.ReasonOverflow, problems[0].Reason)
			require.Contains(t, problems[0].Message, "10 entries and 2 ranges")
			if c.rules == "" {
				require.Equal(t, before.Ingress, of(6).Ingress)
			} else {
				require.Zero(t, of(6).Ingress.Enforced, "cut off")
			}
			require.Equal(t, before.Egress, of(6).Egress)

			put(t, w.DB, w.identities, remoteIdentity(1))
			put(t, w.DB, rules, &k8s.NetworkPolicy{Namespace: "ns-6", Name: "first", IsIngress: true, Ingress: []k8s.PolicyRule{{Ports: oddPorts(8)}}},
				addresses("ns-7", "ranges", "app-7", 1, 1))
			rounds()
			require.Greater(t, of(7).Ingress.Enforced.ID, uint32(1))
			require.Empty(t, of(7).Error)
			require.Greater(t, of(8).Egress.Enforced.ID, uint32(1))
			require.Empty(t, of(8).Error)
			require.Contains(t, w.Entries.(fakeEntries).cidrs, netip.MustParsePrefix("50.1.0.0/32"))
			require.True(t, w.announced[remoteIdentity(1).ID])

			put(t, w.DB, table, tenant(3))
			rounds()
			w.step(t)
			require.Empty(t, of(6).Error)
			require.Greater(t, of(6).Ingress.Enforced.ID, uint32(1))
			require.Empty(t, w.problemsOf(t, ref))
		})
	}
}

// Cluster-wide policies have no quota. Their entries count for an endpoint that has a policy of its namespace as well.
func TestEntryQuota_ClusterwidePolicies(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.store.quota = capacity{3, 3}
	table := rw[*cilium.Policy](w.CiliumPolicies)
	const ports = `"ingress": [{"toPorts": [{"ports": [{"port": "1", "protocol": "TCP"}, {"port": "3", "protocol": "TCP"}, {"port": "5", "protocol": "TCP"}, {"port": "7", "protocol": "TCP"}]}]}]`
	put(t, w.DB, table, rulesOf("", "all", "app-5", ports))
	w.step(t)
	entries, _ := w.cost()
	require.Equal(t, 4, entries)
	put(t, w.DB, rw(w.KubernetesPolicies), &k8s.NetworkPolicy{Namespace: "ns-5", Name: "more", IsIngress: true,
		Ingress: []k8s.PolicyRule{{Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "9"}}}}})
	w.failingRound()
	require.ErrorContains(t, w.problems[0], errQuota.Error())
	row, _, _ := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(6))
	require.Contains(t, row.Error, "in namespace ns-5")
}
