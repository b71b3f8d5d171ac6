package policymaps

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// addresses returns an egress policy for the pods of a namespace with a label, with n addresses from 50.x.0.0 on.
func addresses(namespace, name, app string, x byte, n int) *k8s.NetworkPolicy {
	p := &k8s.NetworkPolicy{Namespace: namespace, Name: name, IsEgress: true, PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": app}},
		Egress: []k8s.PolicyRule{{}}}
	for i := range n {
		p.Egress[0].Peers = append(p.Egress[0].Peers, k8s.Peer{IPBlock: netip.PrefixFrom(netip.AddrFrom4([4]byte{50, x, byte(i >> 8), byte(i)}), 32)})
	}
	return p
}

// internet returns a policy that allows the pods of a namespace one port of all IPv4 addresses, except one.
func internet(namespace string, port int) *k8s.NetworkPolicy {
	return &k8s.NetworkPolicy{Namespace: namespace, Name: "internet", IsEgress: true, Egress: []k8s.PolicyRule{{
		Peers: []k8s.Peer{{IPBlock: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}}},
		Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: fmt.Sprint(port)}}}}}
}

// cost returns the number of entries of all policies, and the number of named address ranges.
func (w *bench) cost() (entries, ranges int) {
	for row := range w.Compiled.All(w.DB.ReadTxn()) {
		entries += row.Entries
	}
	return entries, w.Named.NumObjects(w.DB.ReadTxn())
}

// failingRound runs one round that may have errors.
func (w *bench) failingRound() {
	txn := w.DB.ReadTxn()
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	w.pass(txn, statedb.NewWatchSet())
}

func (w *bench) problemsOf(t *testing.T, ref policy.Ref) []policy.Problem {
	t.Helper()
	row, _, found := w.Policies.Get(w.DB.ReadTxn(), policies.ByRef(ref.String()))
	require.True(t, found, "%s has no row", ref)
	return row.Problems
}

// manyAddresses is [addresses] as a CiliumNetworkPolicy.
func manyAddresses(namespace, name, app string, x byte, n int) *cilium.Policy {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`"50.%d.%d.%d/32"`, x, i>>8, byte(i))
	}
	return rulesOf(namespace, name, app, `"egress": [{"toCIDR": [`+strings.Join(list, ", ")+`]}]`)
}

// A tenant names 80,000 addresses in two policies that select no endpoint of this node. The maps have none of them, and rules of other tenants that contain
// these addresses have as many entries as before. With a pod of the tenant on this node the addresses are named, the rules of other tenants still have as many
// entries, and without the pod the addresses are not named any longer.
func TestPolicies_WithoutALocalEndpoint_TakeNoEntries(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 1 << 16
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	for i := range 4 {
		put(t, w.DB, rules, internet(fmt.Sprint("ns-", i), 443+i))
	}
	w.step(t)
	const internets = 2 * 4 // each has an entry for all addresses, and one that stops it at the excepted address
	entries, ranges := w.cost()
	require.Equal(t, internets, entries)
	require.Equal(t, 2, ranges)

	const many = 40_000
	put(t, w.DB, rules, addresses("ns-5", "nobody-0", "nobody", 0, many))
	put(t, w.DB, w.CiliumPolicies.(statedb.RWTable[*cilium.Policy]), manyAddresses("ns-5", "nobody-1", "nobody", 1, many))
	w.step(t)
	for _, ref := range []policy.Ref{{Kind: policy.Kubernetes, Namespace: "ns-5", Name: "nobody-0"}, {Kind: policy.Cilium, Namespace: "ns-5", Name: "nobody-1"}} {
		require.Empty(t, w.problemsOf(t, ref))
	}
	entries, ranges = w.cost()
	t.Attr("added", fmt.Sprintf("%d entries and ranges", entries+ranges-internets-2))
	require.Equal(t, internets, entries)
	require.Equal(t, 2, ranges)

	put(t, w.DB, rules, addresses("ns-5", "nobody-0", "app-5", 0, 500)) // endpoint 6
	w.step(t)
	entries, ranges = w.cost()
	require.Equal(t, internets+500, entries, "what the tenant names costs the tenant alone")
	require.Equal(t, 502, ranges)

	put(t, w.DB, rules, addresses("ns-5", "nobody-0", "nobody", 0, 500))
	w.step(t)
	entries, ranges = w.cost()
	require.Equal(t, internets, entries)
	require.Equal(t, 2, ranges)
}

// A policy makes the next round evaluate the endpoints that it selects before or after a change, and endpoints with unknown labels. A policy that selects no
// endpoint of this node makes it evaluate no other endpoint.
func TestPolicies_WithoutALocalEndpoint_EvaluateNoEndpoint(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	read := func() []uint16 {
		w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
		require.False(t, w.in.all)
		marked := slices.Sorted(maps.Keys(w.in.marked))
		w.step(t)
		return marked
	}
	written := func(app string) []uint16 {
		put(t, w.DB, rules, addresses("ns-5", "some", app, 9, 1))
		return read()
	}
	require.Empty(t, written("nobody"))
	require.Equal(t, []uint16{6}, written("app-5"))
	entries, _ := w.cost()
	require.Equal(t, 1, entries)
	require.Equal(t, []uint16{6}, written("nobody"), "it no longer selects the endpoint")
	entries, _ = w.cost()
	require.Zero(t, entries)
	require.Empty(t, written("nobody-else"))
	row, _, found := w.Policies.Get(w.DB.ReadTxn(), policies.ByRef(policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-5", Name: "some"}.String()))
	require.True(t, found)
	require.Zero(t, row.Subjects)
	require.Contains(t, fmt.Sprint(row.Parts[0].Subject.Requirements), "nobody-else", "the table has the last version")

	ep, _, _ := w.endpoints.Get(w.DB.ReadTxn(), endpoints.ByID(1))
	unknown := ep.Clone()
	unknown.LabelsMissing = "those of its namespace"
	put(t, w.DB, w.endpoints, unknown)
	w.step(t)
	require.Equal(t, []uint16{1}, written("nobody"))
	put(t, w.DB, w.endpoints, ep)
	w.step(t)
	txn := w.DB.WriteTxn(rules)
	_, _, err := rules.Delete(txn, addresses("ns-5", "some", "", 9, 0))
	require.NoError(t, err)
	txn.Commit()
	require.Empty(t, read(), "a deleted policy that selects no endpoint")
}

// A rule that names ports of peers makes the controller follow all pods of the cluster, but only where an endpoint has the rule.
func TestPolicies_NamedPortsWithoutALocalEndpoint_FollowNoPeers(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	named := func(app string) *k8s.NetworkPolicy {
		p := addresses("ns-5", "named", app, 0, 0)
		p.Egress[0] = k8s.PolicyRule{Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}
		return p
	}
	put(t, w.DB, rules, named("nobody"))
	w.step(t)
	require.False(t, w.in.peers.loaded)
	put(t, w.DB, rules, named("app-5"))
	w.step(t)
	require.True(t, w.in.peers.loaded)
}

// TestQuota_Default: without a flag the policies of one namespace name at most 64,000 of the 512,000 address ranges of a node.
func TestQuota_Default(t *testing.T) {
	t.Parallel()
	c, _, err := typed(t)
	require.NoError(t, err)
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 1 << 19
	w.Config.NamespaceCIDRs = c.NamespaceCIDRs
	rules := rw(w.KubernetesPolicies)
	put(t, w.DB, rules, addresses("ns-5", "large", "app-5", 1, 64_003), addresses("ns-6", "other", "app-6", 2, 10))
	w.step(t)
	_, ranges := w.cost()
	require.Equal(t, 64_000+10, ranges)
	problems := w.problemsOf(t, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-5", Name: "large"})
	require.Len(t, problems, 1)
	require.True(t, strings.HasPrefix(problems[0].Message, "3 of its address ranges are not in force"), problems[0].Message)
}

// A namespace names more address ranges than its quota. The ranges beyond the quota are not in the maps, and the policy that names them has a problem.
// Policies of other namespaces and ranges of the namespace that are already in the maps stay in force.
func TestQuota_NamespaceOverQuota_ReportedOnPolicy(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 1 << 16
	w.Config.NamespaceCIDRs = 20
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	small, large, other := addresses("ns-5", "small", "app-5", 9, 15), addresses("ns-5", "large", "app-5", 1, 30), addresses("ns-6", "other", "app-6", 1, 10)
	ref := func(p *k8s.NetworkPolicy) policy.Ref {
		return policy.Ref{Kind: policy.Kubernetes, Namespace: p.Namespace, Name: p.Name}
	}
	put(t, w.DB, rules, small)
	w.step(t)
	put(t, w.DB, rules, large, other)
	w.step(t)

	_, ranges := w.cost()
	require.Equal(t, 15+10, ranges, "50.1.0.0 to 50.1.0.4 are within the quota of ns-5, and ns-6 names them too")
	require.Empty(t, w.problemsOf(t, ref(small)))
	require.Empty(t, w.problemsOf(t, ref(other)))
	problems := w.problemsOf(t, ref(large))
	require.Len(t, problems, 1)
	require.Equal(t, policy.ReasonOverflow, problems[0].Reason)
	require.True(t, strings.HasPrefix(problems[0].Message, "20 of its address ranges are not in force"), problems[0].Message)

	allowed := func(id uint16, address string) bool {
		_, egress := w.in.resolver.Compile(id)
		peer := w.in.resolver.Peer(2, netip.MustParseAddr(address))
		return egress.Enforced.Lookup(policycompiler.Peer{Identity: peer.Identity, CIDRs: peer.CIDRs, Outside: true}, policy.ProtocolTCP, 80).Allowed
	}
	require.True(t, allowed(6, "50.9.0.14"))
	require.True(t, allowed(6, "50.1.0.4"))
	require.False(t, allowed(6, "50.1.0.29"))
	require.True(t, allowed(7, "50.1.0.9"))

	also := addresses("ns-6", "also", "app-6", 1, 1)
	also.Egress[0].Peers[0].IPBlock = netip.MustParsePrefix("50.1.0.29/32")
	put(t, w.DB, rules, also)
	w.step(t)
	require.True(t, allowed(7, "50.1.0.29"), "a prefix that another namespace names beyond its quota is within that of ns-6")
	require.Empty(t, w.problemsOf(t, ref(also)))

	put(t, w.DB, rules, addresses("ns-5", "large", "app-5", 1, 5))
	w.step(t)
	require.Empty(t, w.problemsOf(t, ref(large)))
}

// CIDRs of groups count toward the quota of the namespaces whose policies refer to them: a tenant must not fill the map by referring to large groups.
// Clusterwide policies have no quota.
func TestQuota_CountsCIDRsOfGroups(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 1 << 16
	w.Config.NamespaceCIDRs = 20
	groups := w.CIDRGroups.(statedb.RWTable[*cilium.CIDRGroup])
	rules := w.CiliumPolicies.(statedb.RWTable[*cilium.Policy])
	group := func(size int) *cilium.CIDRGroup {
		g := &cilium.CIDRGroup{Name: "large"}
		for i := range size {
			g.CIDRs = append(g.CIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{50, 1, 0, byte(i)}), 32))
		}
		return g
	}
	refers := func(namespace, app string) *cilium.Policy {
		return &cilium.Policy{Namespace: namespace, Name: "refers", Spec: json.RawMessage(`{"endpointSelector": {"matchLabels": {"app": "` + app +
			`"}}, "egress": [{"toCIDRSet": [{"cidrGroupRef": "large"}]}]}`)}
	}
	w.step(t)
	tenant, operator := policy.Ref{Kind: policy.Cilium, Namespace: "ns-5", Name: "refers"}, policy.Ref{Kind: policy.Clusterwide, Name: "refers"}
	put(t, w.DB, rules, refers("ns-5", "app-5"))
	w.step(t)
	require.Equal(t, policy.ReasonAbsent, w.problemsOf(t, tenant)[0].Reason)

	put(t, w.DB, groups, group(30))
	w.step(t)
	_, ranges := w.cost()
	require.Equal(t, 20, ranges)
	problems := w.problemsOf(t, tenant)
	require.Len(t, problems, 1)
	require.True(t, strings.HasPrefix(problems[0].Message, "10 of its address ranges are not in force"), problems[0].Message)

	put(t, w.DB, rules, refers("", "app-6"))
	w.step(t)
	_, ranges = w.cost()
	require.Equal(t, 30, ranges)
	require.Empty(t, w.problemsOf(t, operator))

	put(t, w.DB, groups, group(5))
	w.step(t)
	require.Empty(t, w.problemsOf(t, tenant))
}

// A policy whose entries or ranges do not fit into their map has a problem; other policies have none.
func TestFullMaps_ReportedOnPolicy(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.capacity = 10
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	put(t, w.DB, rules, addresses("ns-5", "first", "app-5", 1, 5))
	w.step(t)
	put(t, w.DB, rules, addresses("ns-6", "second", "app-6", 2, 7))
	w.failingRound()
	require.Empty(t, w.problemsOf(t, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-5", Name: "first"}))
	problems := w.problemsOf(t, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-6", Name: "second"})
	require.Len(t, problems, 1)
	require.Contains(t, problems[0].Message, "2 of its address ranges are not in force")
	require.Contains(t, problems[0].Message, "--bpf-cidr-map-max")

	w.store.capacity = w.store.used()
	put(t, w.DB, rules, internet("ns-7", 443))
	w.failingRound()
	problems = w.problemsOf(t, policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-7", Name: "internet"})
	require.Len(t, problems, 1)
	require.Equal(t, policy.ReasonOverflow, problems[0].Reason)
}

// A new exception for a range that is in the map both narrows and opens a rule, so its endpoints get another policy id, which is written completely. An
// exception for a range that is not in the map yet changes the policy in place.
func TestExcept_KnownRange_GetsNewPolicyID(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		w := newBench(t, 10, 0)
		rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
		if known {
			put(t, w.DB, rules, addresses("ns-6", "other", "app-6", 1, 1))
		}
		wide := func(except ...netip.Prefix) *k8s.NetworkPolicy {
			p := internet("ns-5", 443)
			p.Egress[0].Peers[0].Except = except
			return p
		}
		id := func() uint32 {
			row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(6))
			require.True(t, found)
			return row.Egress.Enforced.ID
		}
		put(t, w.DB, rules, wide(netip.MustParsePrefix("169.254.169.254/32")))
		w.step(t)
		before := id()
		put(t, w.DB, rules, wide(netip.MustParsePrefix("169.254.169.254/32"), netip.MustParsePrefix("50.1.0.0/32")))
		w.step(t)
		require.Equal(t, known, id() != before, "known %t", known)
	}
}

// While programs of the previous release may run, whose map of address ranges is smaller, the size of that map limits the named ranges.
func TestRanges_ProgramsOfPreviousRelease_LimitCount(t *testing.T) {
	t.Parallel()
	previous := bpf.PreviousLayoutOf(bpf.MapCIDRs)
	require.NotNil(t, previous)
	c := newCIDRs(nil)
	c.capacity = int(previous.Spec.MaxEntries) + 1000
	require.Equal(t, int(previous.Spec.MaxEntries), c.limit())
	c.nested = true
	require.Equal(t, c.capacity, c.limit())
}
