package policymaps

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestRetry_RangeThatCannotBeRemoved: the next attempt follows after a delay. Each attempt raises the epoch, after which the datapath evaluates all flows again.
func TestRetry_RangeThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 4, 0)
		put(t, w.DB, rw(w.KubernetesPolicies), addresses("ns-0", "ranges", "app-0", 1, 2))
		c, status := w.starts(t)
		w.follows(t, 6)
		fake, gone := w.Entries.(fakeEntries), netip.MustParsePrefix("50.1.0.1/32")
		require.Contains(t, fake.cidrs, gone)
		fake.failures, fake.fail = 1<<30, "delete cidr"
		remove(t, w.DB, rw(w.KubernetesPolicies), &k8s.NetworkPolicy{Namespace: "ns-0", Name: "ranges"})
		w.follows(t, 6)
		require.NotEmpty(t, c.problems)
		before := fake.epoch
		time.Sleep(10 * time.Microsecond)
		status()
		require.LessOrEqual(t, fake.epoch-before, 1)
		require.Contains(t, fake.cidrs, gone)
		fake.failures = 0
		time.Sleep(maxRetry)
		w.follows(t, 6)
		require.NotContains(t, fake.cidrs, gone)
		require.Empty(t, c.problems)
	})
}

// TestVerify_ForeignRangeWithNumberInUse: after the removal of a range of another program, entries about its number still count as entries that match packets.
func TestVerify_ForeignRangeWithNumberInUse(t *testing.T) {
	t.Parallel()
	w := newBench(t, 4, 0)
	put(t, w.DB, rw(w.KubernetesPolicies), addresses("ns-0", "ranges", "app-0", 1, 1))
	w.step(t)
	fake, ours, foreign := w.Entries.(fakeEntries), netip.MustParsePrefix("50.1.0.0/32"), netip.MustParsePrefix("192.0.2.0/24")
	number := fake.cidrs[ours]
	require.True(t, w.mayMatch(policycompiler.CIDR, number))
	fake.cidrs[foreign] = number
	require.NoError(t, (&verifier{controller: w.controller}).compareRanges(t.Context(), &differences{ranges: map[netip.Prefix]string{}}))
	require.NotContains(t, fake.cidrs, foreign)
	require.True(t, w.mayMatch(policycompiler.CIDR, number))
	remove(t, w.DB, rw(w.KubernetesPolicies), &k8s.NetworkPolicy{Namespace: "ns-0", Name: "ranges"})
	w.step(t)
	require.Empty(t, fake.cidrs)
	require.False(t, w.mayMatch(policycompiler.CIDR, number))
}

// TestRetry_FullMaps_RaisesRevisionOnce: a change of a policy does not fit into the maps, but a part of it that narrows does. The attempts to write the rest raise
// no revision: the datapath would evaluate all flows again after each, and its facts would begin the next one at once.
func TestRetry_FullMaps_RaisesRevisionOnce(t *testing.T) {
	t.Parallel()
	const allow, deny = `"ingress": [{"fromEndpoints": [{"matchLabels": {"role": "good"}}]}]`, `"ingressDeny": [{"fromEndpoints": [{"matchLabels": {"role": "bad"}}]}]`
	for name, c := range map[string]struct {
		free  int      // entries that fit
		rules string   // of the policy from now on, if they change
		added []string // roles of new identities
	}{
		"only denies fit":     {free: 1, added: []string{"good", "bad"}},
		"only a removal fits": {free: 0, rules: `"ingressDeny": [{"fromEndpoints": [{"matchExpressions": [{"key": "role", "operator": "In", "values": ["bad", "ugly"]}]}]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t, 0, 0)
				w.add(t, 0)
				var rows []*identities.Identity
				for i, role := range append([]string{"good", "bad", "ugly", "ugly"}, c.added...) {
					rows = append(rows, &identities.Identity{ID: uint32(900 + i), Labels: map[string]string{"k8s:role": role, "k8s:io.kubernetes.pod.namespace": "ns-0"}})
				}
				put(t, w.DB, w.identities, rows[:4]...)
				table := rw[*cilium.Policy](w.CiliumPolicies)
				put(t, w.DB, table, rulesOf("ns-0", "p", "app-0", allow+`, `+deny))
				loop, status := w.starts(t)
				w.follows(t, 6)
				row := func() *endpointpolicies.EndpointPolicy {
					status()
					row, _, _ := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(1))
					return row
				}
				require.Empty(t, row().Error)
				before := row().Revision
				loop.store.capacity = loop.store.used().plus(capacity{c.free, 0})
				put(t, w.DB, w.identities, rows[4:]...)
				if c.rules != "" {
					put(t, w.DB, table, rulesOf("ns-0", "p", "app-0", c.rules))
				}
				for range 10 {
					w.follows(t, 4)
					require.Contains(t, row().Error, errFull.Error())
					time.Sleep(300 * time.Millisecond) // for attempts without new facts
				}
				require.Equal(t, before+1, row().Revision)
				loop.store.capacity = capacity{100, 100}
				time.Sleep(maxRetry)
				w.follows(t, 6)
				require.Empty(t, row().Error)
				require.Empty(t, loop.problems)
			})
		})
	}
}

// TestRetry_FullMaps_RangeWaits_OthersArePublished: a policy in use lacks denies that do not fit into the maps, so a new range of another tenant waits, and with it
// the policy that names the range. A third tenant narrows a policy, and a pod with labels that are known is added: neither waits.
func TestRetry_FullMaps_RangeWaits_OthersArePublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 3, 0)
		peer := func(id uint32, namespace, role string) {
			put(t, w.DB, w.identities, &identities.Identity{ID: id, Labels: map[string]string{"k8s:role": role, "k8s:io.kubernetes.pod.namespace": namespace}})
		}
		from := func(role string) string { return `{"fromEndpoints": [{"matchLabels": {"role": "` + role + `"}}]}` }
		peer(900, "ns-0", "good")
		peer(901, "ns-0", "bad")
		peer(902, "ns-1", "good")
		peer(903, "ns-1", "bad")
		table := rw[*cilium.Policy](w.CiliumPolicies)
		put(t, w.DB, table, rulesOf("ns-0", "p", "app-0", `"ingress": [`+from("good")+`], "ingressDeny": [`+from("bad")+`]`),
			rulesOf("ns-1", "p", "app-1", `"ingress": [`+from("good")+`, `+from("bad")+`]`))
		c, status := w.starts(t)
		w.follows(t, 6)
		row := func(id uint16) *endpointpolicies.EndpointPolicy {
			status()
			row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
			require.True(t, found)
			return row
		}
		before := row(2)
		fake, wide := w.Entries.(fakeEntries), netip.MustParsePrefix("50.1.0.0/32")

		c.store.capacity = c.store.used().plus(capacity{1, 0})
		for id := range uint32(3) {
			peer(910+id, "ns-0", "bad")
		}
		put(t, w.DB, rw(w.KubernetesPolicies), addresses("ns-2", "ranges", "app-2", 1, 1))
		w.follows(t, 6)
		put(t, w.DB, table, rulesOf("ns-1", "p", "app-1", `"ingress": [`+from("good")+`]`))
		w.follows(t, 6)
		require.NotContains(t, fake.cidrs, wide)
		require.Equal(t, before.Revision+1, row(2).Revision)
		require.Empty(t, row(2).Error)
		put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 4, ContainerID: "4", IfName: "eth0", HostIfIndex: 4, Labels: labelsOf(1, 1)})
		put(t, w.DB, w.of, &identities.EndpointIdentity{EndpointID: 4, Attachment: "4:eth0", Identity: 257})
		w.follows(t, 6)
		require.Equal(t, row(2).Ingress, row(4).Ingress)
		require.Empty(t, row(4).Error)
		require.Equal(t, "waiting for address ranges", row(3).Error)
		require.Equal(t, uint32(1), row(3).Egress.Enforced.ID)
		require.False(t, c.announced[910])
		time.Sleep(maxRetry)
		w.follows(t, 6)
		require.Equal(t, before.Revision+1, row(2).Revision, "retries raise no revision")

		c.store.capacity = capacity{100, 100}
		time.Sleep(maxRetry)
		w.follows(t, 6)
		require.Contains(t, fake.cidrs, wide)
		require.Empty(t, row(3).Error)
		require.Greater(t, row(3).Egress.Enforced.ID, uint32(1))
		require.True(t, c.announced[910])
		require.Empty(t, c.problems)
	})
}
