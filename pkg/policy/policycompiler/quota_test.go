package policycompiler

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

// namedBy returns an egress policy of a namespace about addresses.
func namedBy(kind policy.Kind, namespace string, addresses ...string) *policy.Policy {
	p := &policy.Policy{Ref: policy.Ref{Kind: kind, Namespace: namespace, Name: "p"}, Parts: []policy.Part{{IsolatesEgress: true}}}
	for i, address := range addresses {
		rule := egress(false, cidrPeers(policy.Outside, address), anyPorts())
		rule.Path = fmt.Sprint("spec.egress[", i, "]")
		p.Parts[0].Rules = append(p.Parts[0].Rules, rule)
	}
	return p
}

// A prefix is beyond the quota when no namespace may name it. A prefix with an identity keeps the identity, and cluster-wide policies have no quota.
func TestBeyondQuota(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default},
		namedBy(policy.Cilium, "a", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32"),
		namedBy(policy.Cilium, "b", "10.0.0.3/32"),
		namedBy(policy.Clusterwide, "", "10.0.0.4/32", "10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"))
	for _, c := range []struct {
		quota int
		has   []string
		want  []string
	}{
		{4, nil, nil},
		{2, nil, nil}, // other policies name 3 and 4
		{1, nil, []string{"10.0.0.2/32"}},
		{1, []string{"10.0.0.2/32"}, []string{"10.0.0.1/32"}},
		{1, []string{"10.0.0.3/32", "10.0.0.4/32"}, []string{"10.0.0.1/32", "10.0.0.2/32"}},
	} {
		beyond := r.BeyondQuota(c.quota, func(p netip.Prefix) bool { return slices.Contains(c.has, p.String()) })
		want := map[netip.Prefix]bool{}
		for _, text := range c.want {
			want[netip.MustParsePrefix(text)] = true
		}
		require.Equal(t, want, beyond, "%+v", c)
	}
	require.Equal(t, map[policy.Ref]int{{Kind: policy.Cilium, Namespace: "a", Name: "p"}: 2, {Kind: policy.Cilium, Namespace: "b", Name: "p"}: 1},
		r.Naming(map[netip.Prefix]bool{netip.MustParsePrefix("10.0.0.1/32"): true, netip.MustParsePrefix("10.0.0.3/32"): true}))
}

// The address of a pod with a named port counts towards no quota: a namespace beyond its quota cannot take the address from rules of other namespaces.
func TestBeyondQuota_LeavesAddressesOfPods(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("ports", egress(false, app("web"), named)), namedBy(policy.Cilium, "a", "10.0.0.1/32", "10.0.0.2/32"))
	for i, number := range []uint16{81, 82} {
		r.UpsertPod(fmt.Sprint(i), Pod{Identity: web, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})},
			Ports: []policy.NamedPort{{Name: "http", Protocol: policy.ProtocolTCP, Number: number}}})
	}
	require.Len(t, r.NamedCIDRs(), 2)
	require.Empty(t, r.BeyondQuota(1, func(netip.Prefix) bool { return false }))
}

// Policies returns the objects of the rules that [Compiled.Rule] finds for each entry, without the entry of no rule.
func TestPolicies_EqualsRuleOfEachEntry(t *testing.T) {
	t.Parallel()
	objects := 0
	for seed := range uint64(200) {
		s := stateOf(policytest.New(seed, policytest.Small))
		r := s.resolver()
		s.nameCIDRs(r, true)
		for id := range s.subjects {
			ingress, egress := r.Compile(id)
			for _, c := range []*Compiled{ingress.Enforced, ingress.Audited, egress.Enforced, egress.Audited} {
				if c == nil {
					continue
				}
				some := func(yield func(Entry) bool) { // every other entry
					i := 0
					for e := range c.Entries() {
						if i++; i%2 == 0 && !yield(e) {
							return
						}
					}
				}
				for _, entries := range []iter.Seq[Entry]{c.Entries(), some} {
					want := map[policy.Ref]bool{}
					for e := range entries {
						if rule, found := c.Rule(e.Rule); found && rule.Policy.Name != "" {
							want[rule.Policy] = true
						}
					}
					objects += len(want)
					require.ElementsMatch(t, slices.Collect(maps.Keys(want)), c.Policies(entries), "seed %d, endpoint %d", seed, id)
				}
			}
		}
	}
	require.Greater(t, objects, 500)
}
