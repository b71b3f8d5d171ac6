package policycompiler

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
)

// several returns policies that select one endpoint and have one rule each.
func several(n int, rule func(int) policy.Rule) (all []*policy.Policy) {
	for i := range n {
		all = append(all, policyOf(fmt.Sprint("p", i), rule(i)))
	}
	return all
}

// Several policies of one endpoint can select each identity in many rules, and all rules share one entry for each identity. The pairs of a rule and an
// identity are limited, also when identities are created later. The memory beyond the limit does not depend on the number of pairs.
func TestPairs_SeveralPoliciesOfOneSubject(t *testing.T) {
	port := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 80, High: 80}}}
	var memory [2]uint64
	for i, policies := range []int{11, 200} {
		r, _ := one(policy.Options{Mode: policy.Default}, several(policies, func(int) policy.Rule { return ingress(false, app("many"), port) })...)
		r.limits.pairs = 1000
		for n := range uint32(100) {
			r.UpsertIdentity(5000+n, map[string]string{"k8s:app": "many", "k8s:n": fmt.Sprint(n)})
		}
		r.NeedsCompile() // settles selectors
		var in *Compiled
		memory[i] = allocated(func() { in, _ = enforced(r) })
		require.True(t, in.TooLarge())
		require.Equal(t, "1000 pairs of a port and a peer of one rule", in.Exceeded())
		require.True(t, in.Isolated())
		require.Empty(t, entriesIn(in))
		require.Len(t, in.Policies(in.Entries()), policies, "reported on all policies of the endpoint")
		if i > 0 {
			continue
		}
		for n := range uint32(10) {
			r.DeleteIdentity(5000 + n)
			in, _ = enforced(r)
			require.Equal(t, n < 9, in.TooLarge(), "%d identities", 99-n)
		}
		require.Len(t, entriesIn(in), 90)
		r.UpsertIdentity(6000, map[string]string{"k8s:app": "many"})
		in, _ = enforced(r)
		require.True(t, in.TooLarge(), "%d identities", 91)
	}
	require.Less(t, memory[1], memory[0]+4096)
}

// A rule counts once for each of its ports.
func TestPairs_CountPorts(t *testing.T) {
	t.Parallel()
	for ports, want := range map[int]bool{10: false, 11: true} {
		r, _ := one(policy.Options{Mode: policy.Default}, several(10, func(int) policy.Rule { return ingress(false, app("web"), oddPorts(ports)) })...)
		r.limits.pairs = 100
		in, _ := enforced(r)
		require.Equal(t, want, in.TooLarge(), "%d ports", ports)
	}
}

// A CIDR counts with all exceptions inside it, also those of other policies of the endpoint. Each policy alone has few pairs.
func TestPairs_ExceptionsOfOtherPolicies(t *testing.T) {
	t.Parallel()
	const others = 20
	for _, deny := range []bool{false, true} {
		for limit, want := range map[int]bool{others * others: true, 2 * others * (others + 1): false} {
			s := several(2*others, func(i int) policy.Rule {
				if i%2 == 0 {
					return egress(deny, cidrPeers(policy.Outside, "10.0.0.0/8"), anyPorts())
				}
				return egress(false, policy.Peers{List: []policy.Peer{{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Scope: policy.Outside,
					Except: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", i))}}}}, anyPorts())
			})
			r, _ := one(policy.Options{Mode: policy.Default}, s...)
			r.limits.pairs = limit
			r.SetNested(true)
			numbers := map[netip.Prefix]uint32{}
			for i, prefix := range r.NamedCIDRs() {
				numbers[prefix] = 0x01000001 + uint32(i)
			}
			r.SetCIDRs(numbers)
			_, out := enforced(r)
			require.Equal(t, want, out.TooLarge(), "limit %d", limit)
			require.Equal(t, want, len(entriesIn(out)) == 0)
		}
	}
}

// Beyond the limit of entries, nothing is computed for further peers.
func TestEntries_NothingBeyondLimit(t *testing.T) {
	set := &ruleset{cookies: &ruleCookies{limit: size{entries: 1}, built: size{entries: 2}}, effects: []effect{{ports: []span{{protocol: 6, run: run{1, 9}}}}}}
	w := &work{peers: map[peer]*peerEffects{{CIDROutside, 7}: {rules: []int{0}}, {CIDR, 7}: {rules: []int{0}, stop: &rule{}}}}
	for p := range w.peers {
		require.Zero(t, testing.AllocsPerRun(10, func() { set.entries(w, p) }))
		require.Nil(t, set.entries(w, p))
	}
}

// Rules whose entries fit into large maps are not beyond the limit of pairs.
func TestPairs_LargeMaps(t *testing.T) {
	t.Parallel()
	r := New(policy.Options{})
	r.SetLimit(1000, 1000)
	require.Equal(t, limits{maxPairs, 2 * maxPairs}, r.limits)
	r.SetLimit(maxPairs, 1000)
	require.Equal(t, limits{16 * maxPairs, 32 * maxPairs}, r.limits)
}
