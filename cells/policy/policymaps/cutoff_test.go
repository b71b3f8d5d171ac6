package policymaps

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
)

// portRules returns a value for toPorts with n single ports.
func portRules(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"port": "%d", "protocol": "TCP"}`, 2*i+1))
	}
	return `"toPorts": [{"ports": [` + strings.Join(list, ", ") + `]}]`
}

// manyPairs returns ingress rules with more pairs of a port and a peer than an endpoint may have, of 100 identities.
func manyPairs() string {
	return strings.Repeat(`, {"fromEndpoints": [{"matchExpressions": [{"key": "k8s:io.kubernetes.pod.namespace", "operator": "Exists"}, `+
		`{"key": "x", "operator": "DoesNotExist"}]}], `+portRules(1000)+"}", 21)[2:]
}

// settleFailing runs rounds that may have errors, and the datapath applies all rows.
func (w *bench) settleFailing(t *testing.T) {
	t.Helper()
	for range 6 {
		w.problems = nil
		w.failingRound()
		for id := range w.views.by {
			w.apply(t, id, reconciler.StatusDone())
		}
	}
}

func (w *bench) rowOf(t *testing.T, id uint16) *endpointpolicies.EndpointPolicy {
	t.Helper()
	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
	require.True(t, found)
	return row
}

// A tenant whose policies exceed a limit must not avoid denies or the isolation by cluster-wide policies: the endpoint is cut off in that direction if its
// previous policy lacks them, also if it had none. Otherwise it keeps the previous policy.
func TestBeyondLimit_ClusterwidePoliciesAreNotAvoided(t *testing.T) {
	t.Parallel()
	const (
		open      = `"enableDefaultDeny": {"ingress": false}, `
		cidr      = `"ingressDeny": [{"fromCIDR": ["192.0.2.0/24"]}]`
		other     = `"ingressDeny": [{"fromCIDR": ["198.51.100.0/24"]}]`
		isolation = `"ingress": [{"fromCIDR": ["203.0.113.0/24"]}]`
	)
	for name, c := range map[string]struct {
		first    string // cluster-wide rules before the limit is exceeded
		isolated bool   // by the policy of the tenant
		later    string // cluster-wide rules after that
		cutOff   bool
	}{
		"nothing denies":              {"", false, "", false},
		"isolation by the tenant":     {"", true, "", true},
		"later deny":                  {"", false, cidr, true},
		"later isolation":             {"", false, isolation, true},
		"same deny":                   {cidr, false, cidr, false},
		"same deny, other object":     {cidr, false, cidr + `, "description": "new"`, false},
		"changed deny":                {cidr, false, other, true},
		"isolation after deny":        {cidr, false, cidr + ", " + isolation, true},
		"isolation stays":             {isolation, true, isolation, false},
		"deny after isolation":        {isolation, true, cidr + ", " + isolation, true},
		"isolation, tenant's as well": {isolation, false, isolation, false},
	} {
		for limit, set := range map[string]func(w *bench){
			"quota": func(w *bench) { w.store.quota = capacity{10, 10} },
			"rules": func(w *bench) { w.in.resolver.SetLimit(1<<17, 1<<15) },
			"compiler": func(w *bench) {
				w.store.quota = capacity{10, 10}
				w.in.resolver.SetLimit(20, 20)
			},
			"maps":          func(w *bench) { w.store.capacity = capacity{10, 10} },
			"twice the map": func(w *bench) { w.store.capacity = capacity{10, 10}; w.in.resolver.SetLimit(20, 20) },
		} {
			t.Run(name+", "+limit, func(t *testing.T) {
				t.Parallel()
				endpoints, large := 10, `{"fromEntities": ["cluster"], `+portRules(40)+`}`
				if limit == "rules" {
					endpoints = 100
					large = manyPairs()
				}
				w := newBench(t, endpoints, 0)
				w.store.quota = capacity{}
				set(w)
				table := rw[*cilium.Policy](w.CiliumPolicies)
				clusterwide := func(rules string) {
					t.Helper()
					if rules != "" {
						put(t, w.DB, table, rulesOf("", "admin", "app-5", rulesWith(open, rules)))
					}
					w.settleFailing(t)
				}
				clusterwide(c.first)
				require.Empty(t, w.problems)
				before := w.rowOf(t, 6)
				require.Equal(t, c.first != "", before.Ingress.Enforced.ID > 1)

				rules := `"ingress": [` + large + `]`
				if !c.isolated {
					rules = open + rules
				}
				put(t, w.DB, table, rulesOf("ns-5", "tenant", "app-5", rules))
				w.settleFailing(t)
				if c.later != c.first {
					clusterwide(c.later)
				}
				row := w.rowOf(t, 6)
				if row.Error == "" { // an endpoint that is not isolated needs no entries for allow rules
					require.True(t, limit != "rules" || c.later == "")
				} else if c.cutOff && (w.store.quota != (capacity{}) || limit == "rules" || before.Ingress.Enforced.ID == 1) {
					require.Zero(t, row.Ingress.Enforced)
				} else {
					require.Equal(t, before.Ingress, row.Ingress)
				}
				require.Equal(t, before.Egress, row.Egress)
				require.Empty(t, w.rowOf(t, 7).Error)

				remove(t, w.DB, table, rulesOf("ns-5", "tenant", "", ""))
				w.settleFailing(t)
				require.Empty(t, w.problems)
				require.Empty(t, w.rowOf(t, 6).Error)
				require.Equal(t, c.later != "", w.rowOf(t, 6).Ingress.Enforced.ID > 1)
			})
		}
	}
}

// A kept policy may deny a label that no identity has yet. Then an endpoint beyond a limit of its namespace is cut off; with cluster-wide policies alone it keeps
// its policy, and an identity with the label is not announced.
func TestBeyondLimit_DeniesOfLaterLabels(t *testing.T) {
	t.Parallel()
	const open = `"enableDefaultDeny": {"ingress": false}, `
	for _, namespace := range []string{"", "ns-5"} {
		w := newBench(t, 100, 0)
		w.store.quota = capacity{}
		w.in.resolver.SetLimit(1<<17, 1<<15)
		table := rw[*cilium.Policy](w.CiliumPolicies)
		put(t, w.DB, table, rulesOf("", "admin", "app-5", open+`"ingressDeny": [{"fromCIDR": ["192.0.2.0/24"]}]`))
		w.settleFailing(t)
		put(t, w.DB, table, rulesOf("", "admin", "app-5", open+`"ingressDeny": [{"fromCIDR": ["192.0.2.0/24"]}, {"fromEndpoints": [{"matchLabels": {"app": "app-100"}}]}]`))
		w.settleFailing(t)
		before := w.rowOf(t, 6)
		require.Greater(t, before.Ingress.Enforced.ID, uint32(1))

		put(t, w.DB, table, rulesOf(namespace, "large", "app-5", open+`"ingress": [`+manyPairs()+`]`))
		w.settleFailing(t)
		w.add(t, 100)
		w.settleFailing(t)
		if namespace != "" {
			require.Zero(t, w.rowOf(t, 6).Ingress.Enforced)
		} else {
			require.Equal(t, before.Ingress, w.rowOf(t, 6).Ingress)
		}
		require.Equal(t, namespace != "", w.announced[256+100])
	}
}

// rulesWith adds a prefix to rules that only deny.
func rulesWith(prefix, rules string) string {
	if strings.Contains(rules, `"ingress":`) {
		return rules
	}
	return prefix + rules
}

// Maps that other namespaces fill do not cut off an endpoint, whose namespace needs little.
func TestFullMaps_OtherNamespacesAreNotCutOff(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.store.capacity, w.store.quota = capacity{30, 30}, capacity{28, 28}
	table := rw[*cilium.Policy](w.CiliumPolicies)
	put(t, w.DB, table, rulesOf("ns-4", "many", "app-4", `"ingress": [{`+portRules(28)+`}]`))
	w.settleFailing(t)
	require.Empty(t, w.problems)
	put(t, w.DB, table, rulesOf("ns-5", "some", "app-5", `"ingress": [{`+portRules(5)+`}]`))
	w.settleFailing(t)
	require.Contains(t, w.rowOf(t, 6).Error, "the maps are full")
	require.Equal(t, uint32(1), w.rowOf(t, 6).Ingress.Enforced.ID)
}

// The problem of a policy says what its endpoints have: an endpoint with cluster-wide policies alone is not cut off.
func TestBeyondLimit_TextByNamespace(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]string{"": "and new ones are cut off", "ns-5": "or, if it may lack denies"} {
		w := newBench(t, 100, 0)
		w.store.quota = capacity{}
		w.in.resolver.SetLimit(1<<17, 1<<15)
		put(t, w.DB, rw[*cilium.Policy](w.CiliumPolicies), rulesOf(namespace, "large", "app-5", `"ingress": [`+manyPairs()+`]`))
		w.settleFailing(t)
		kind := policy.Cilium
		if namespace == "" {
			kind = policy.Clusterwide
		}
		problems := w.problemsOf(t, policy.Ref{Kind: kind, Namespace: namespace, Name: "large"})
		require.Len(t, problems, 1)
		require.Contains(t, problems[0].Message, want)
		require.Equal(t, namespace == "", w.rowOf(t, 6).Ingress.Enforced.ID == 1)
	}
}

// A limit in one direction, or of policies in audit mode, does not prevent the enforced policies of the other direction.
func TestBeyondLimit_OneDirection(t *testing.T) {
	t.Parallel()
	for name, audit := range map[string]bool{"enforced": false, "audited": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBench(t, 10, 0)
			w.store.quota = capacity{10, 10}
			table := rw[*cilium.Policy](w.CiliumPolicies)
			const little = `"ingress": [{"toPorts": [{"ports": [{"port": "1", "protocol": "TCP"}]}]}]`
			put(t, w.DB, table, rulesOf("ns-5", "in", "app-5", little))
			w.settleFailing(t)
			before := w.rowOf(t, 6)
			require.Greater(t, before.Ingress.Enforced.ID, uint32(1))

			large := rulesOf("ns-5", "large", "app-5", `"ingress": [{`+portRules(40)+`}]`)
			if audit {
				large.Annotations = map[string]string{policy.ModeAnnotation: policy.ModeAudit}
			}
			put(t, w.DB, table, large, rulesOf("ns-5", "out", "app-5", `"egress": [{"toPorts": [{"ports": [{"port": "1", "protocol": "TCP"}]}]}]`))
			w.settleFailing(t)
			row := w.rowOf(t, 6)
			require.Contains(t, row.Error, "quota")
			require.Greater(t, row.Egress.Enforced.ID, uint32(1))
			require.True(t, row.Egress.Isolated)
			require.Zero(t, row.Ingress.Audited)
			require.Equal(t, before.Ingress.Enforced, row.Ingress.Enforced)
			if !audit {
				return
			}
			put(t, w.DB, table, rulesOf("ns-5", "in", "app-5", `"ingress": [{"toPorts": [{"ports": [{"port": "3", "protocol": "TCP"}]}]}]`))
			w.settleFailing(t)
			require.NotEqual(t, before.Ingress.Enforced, w.rowOf(t, 6).Ingress.Enforced, "follows changes")
		})
	}
}
