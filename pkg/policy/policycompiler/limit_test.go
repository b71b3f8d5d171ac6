package policycompiler

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
)

// noClass selects each identity without a label by itself: no class of identities has this in common.
func noClass() policy.Peers {
	return policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{Requirements: []policy.Requirement{{Source: "k8s", Key: "nope", Operator: policy.DoesNotExist}}}}}}
}

// oddPorts are n ports of which no two can share an entry.
func oddPorts(n int) (ports policy.Ports) {
	for i := range n {
		ports.List = append(ports.List, policy.Port{Protocol: policy.ProtocolTCP, Low: uint16(2*i + 1), High: uint16(2*i + 1)})
	}
	return ports
}

// A few rules of one object can need an entry for each of thousands of ports and each identity of the cluster. Beyond the limit the resolver builds none: the
// costs of a result are bounded by the limit, not by the product of ports and identities.
func TestSetLimit_BoundsResult(t *testing.T) {
	t.Parallel()
	const limit, ports = 1000, 1000
	rule := ingress(false, noClass(), oddPorts(ports))
	for _, deny := range []bool{false, true} {
		r, _ := one(policy.Options{Mode: policy.Default}, policyOf("large", rule, ingress(deny, app("web"), anyPorts())))
		r.SetLimit(limit, limit)
		for i := range uint32(100) {
			r.UpsertIdentity(5000+i, map[string]string{"k8s:app": fmt.Sprint(i)})
		}
		in, out := enforced(r)
		require.True(t, in.TooLarge())
		require.False(t, out.TooLarge())
		require.Equal(t, deny, in.Denies())
		require.True(t, in.Isolated())
		require.Empty(t, entriesIn(in))
		entries, ranges := in.Len()
		require.Greater(t, entries, limit)
		require.LessOrEqual(t, entries, limit+ports, "at most one peer more")
		require.Zero(t, ranges)
		require.Equal(t, []policy.Ref{policyOf("large").Ref}, in.Policies(in.Entries()))

		r.UpsertIdentity(6000, map[string]string{"k8s:app": "more"})
		again, _ := enforced(r)
		require.Same(t, in, again)
		small := policyOf("large", ingress(false, noClass(), oddPorts(2)), ingress(deny, app("web"), anyPorts()))
		r.UpsertPolicy(small)
		in, _ = enforced(r)
		require.False(t, in.TooLarge())
		require.NotEmpty(t, entriesIn(in))
		r.UpsertPolicy(policyOf("large", rule))
		in, _ = enforced(r)
		require.True(t, in.TooLarge())
		r.UpsertPolicy(policyOf("large"))
		in, _ = enforced(r)
		require.False(t, in.TooLarge())
		require.Empty(t, entriesIn(in), "isolated without a rule")
	}
}

// One more identity can exceed the limit, and one less can respect it again. A result at the limit is not too large.
func TestSetLimit_CountsAddedIdentities(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", ingress(false, app("many"), oddPorts(10))))
	r.SetLimit(50, 1)
	many := map[string]string{"k8s:app": "many"}
	for i := range uint32(7) {
		r.UpsertIdentity(5000+i, many)
		in, _ := enforced(r)
		require.Equal(t, i >= 5, in.TooLarge(), "%d identities", i+1)
	}
	for i := range uint32(3) {
		r.DeleteIdentity(5000 + i)
		in, _ := enforced(r)
		require.Equal(t, i == 0, in.TooLarge(), "%d identities", 6-i)
	}
	ranges := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 1024, High: 1024 + 511}}}
	r.UpsertPolicy(policyOf("p", ingress(false, app("many"), ranges)))
	in, _ := enforced(r)
	require.True(t, in.TooLarge(), "4 ranges of ports")
}

// allocated returns the memory that a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The memory for a result above the limit is that of a result about two identities, not about 100.
func TestSetLimit_BoundsMemory(t *testing.T) {
	var of [2]uint64
	for i, identities := range []uint32{2, 100} {
		r, _ := one(policy.Options{Mode: policy.Default}, policyOf("large", ingress(false, noClass(), oddPorts(1000))))
		r.DeleteIdentity(web)
		r.DeleteIdentity(db)
		r.SetLimit(1000, 1000)
		for n := range identities {
			r.UpsertIdentity(5000+n, map[string]string{"k8s:app": fmt.Sprint(n)})
		}
		of[i] = allocated(func() { enforced(r) })
	}
	require.Less(t, of[1], 2*of[0])
}

// A rule that denies by labels, or by the name of a port of peers, counts before it has entries; other denies do not.
func TestDeniesByLabels(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	for name, c := range map[string]struct {
		rule policy.Rule
		want bool
	}{
		"labels":          {egress(true, app("later"), anyPorts()), true},
		"name of a port":  {egress(true, policy.Peers{Any: true}, named), true},
		"allowed labels":  {egress(false, app("later"), anyPorts()), false},
		"address range":   {egress(true, cidrPeers(policy.Outside, "192.0.2.0/24"), anyPorts()), false},
		"every peer":      {egress(true, policy.Peers{Any: true}, anyPorts()), false},
		"fixed identity":  {egress(true, policy.Peers{List: []policy.Peer{{Identities: []uint32{web}}}}, anyPorts()), false},
		"nothing allowed": {egress(false, policy.Peers{}, anyPorts()), false},
	} {
		r, _ := one(policy.Options{Mode: policy.Default})
		p := policyOf("p", egress(false, app("db"), anyPorts()))
		r.UpsertPolicy(p)
		_, before := enforced(r)
		require.False(t, before.DeniesByLabels())
		r.UpsertPolicy(policyOf("p", egress(false, app("db"), anyPorts()), c.rule))
		_, out := enforced(r)
		require.Equal(t, c.want, out.DeniesByLabels(), name)
		r.UpsertPolicy(p)
		_, out = enforced(r)
		require.False(t, out.DeniesByLabels(), name)
	}
}

// A rule that denies the same in another version of its policy is not a further one.
func TestDeniesBeyond(t *testing.T) {
	t.Parallel()
	rule := func(prefix string) policy.Rule { return egress(true, cidrPeers(policy.Outside, prefix), anyPorts()) }
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", rule("192.0.2.0/24")))
	_, before := enforced(r)
	require.True(t, before.DeniesBeyond(nil))
	require.False(t, before.DeniesBeyond(before))
	two := policyOf("two", rule("192.0.2.0/24"), rule("198.51.100.0/24"))
	two.Parts[0].Rules[1].Path = two.Parts[0].Rules[0].Path
	samePath, _ := one(policy.Options{Mode: policy.Default}, two)
	_, both := enforced(samePath)
	require.False(t, both.DeniesBeyond(both), "two rules at one path")
	for name, c := range map[string]struct {
		rules []policy.Rule
		want  bool
	}{
		"same":      {[]policy.Rule{rule("192.0.2.0/24")}, false},
		"allow too": {[]policy.Rule{rule("192.0.2.0/24"), egress(false, app("db"), anyPorts())}, false},
		"allows":    {[]policy.Rule{egress(false, cidrPeers(policy.Outside, "192.0.2.0/24"), anyPorts())}, false},
		"one more":  {[]policy.Rule{rule("192.0.2.0/24"), rule("198.51.100.0/24")}, true},
		"other":     {[]policy.Rule{rule("192.0.2.0/23")}, true},
		"ports":     {[]policy.Rule{egress(true, cidrPeers(policy.Outside, "192.0.2.0/24"), oddPorts(1))}, true},
	} {
		r.UpsertPolicy(policyOf("p", c.rules...))
		r.limits.pairs = -1 // so that the result is new
		_, out := enforced(r)
		require.True(t, out.TooLarge())
		require.Equal(t, c.want, out.DeniesBeyond(before), name)
	}
	r.UpsertPolicy(policyOf("p", rule("192.0.2.0/24")))
	_, denies := enforced(r)
	r.UpsertPolicy(policyOf("p", egress(false, cidrPeers(policy.Outside, "192.0.2.0/24"), anyPorts())))
	_, allows := enforced(r)
	require.True(t, denies.DeniesBeyond(allows))
}
