package policycompiler

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Identities of the tests below.
const (
	web uint32 = 300 + iota
	db
)

var tcp80 = policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 80, High: 80}}}

func anyPorts() policy.Ports { return policy.Ports{Any: true} }

func app(name string) policy.Peers {
	return policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{Requirements: []policy.Requirement{label("app", name)}}}}}
}

func cidrPeers(scope policy.Scope, prefix string, except ...string) policy.Peers {
	p := policy.Peer{CIDR: netip.MustParsePrefix(prefix), Scope: scope}
	for _, e := range except {
		p.Except = append(p.Except, netip.MustParsePrefix(e))
	}
	return policy.Peers{List: []policy.Peer{p}}
}

func ingress(deny bool, peers policy.Peers, ports policy.Ports) policy.Rule {
	return policy.Rule{Direction: policy.Ingress, Deny: deny, Peers: peers, Ports: ports}
}

func egress(deny bool, peers policy.Peers, ports policy.Ports) policy.Rule {
	return policy.Rule{Direction: policy.Egress, Deny: deny, Peers: peers, Ports: ports}
}

// policyOf returns a policy that selects every endpoint and isolates it in both directions.
func policyOf(name string, rules ...policy.Rule) *policy.Policy {
	for i := range rules {
		rules[i].Path = fmt.Sprintf("spec.rules[%d]", i)
	}
	return &policy.Policy{Ref: policy.Ref{Kind: policy.Cilium, Namespace: "default", Name: name},
		Parts: []policy.Part{{Path: "spec", IsolatesIngress: true, IsolatesEgress: true, Rules: rules}}}
}

// one returns a resolver with one endpoint and the identities web and db.
func one(options policy.Options, policies ...*policy.Policy) (*Resolver, *state) {
	s := newState(options)
	for _, id := range identity.Fixed() {
		s.identities[id] = identity.Labels(id)
	}
	s.identities[web] = map[string]string{"k8s:app": "web"}
	s.identities[db] = map[string]string{"k8s:app": "db"}
	s.subjects[1] = Subject{ID: 1, Labels: map[string]string{"k8s:app": "subject"}}
	for _, p := range policies {
		s.policies[p.Ref] = p
	}
	r := s.resolver()
	s.nameCIDRs(r, false)
	return r, s
}

func entriesIn(c *Compiled) []Entry {
	all := slices.Collect(c.Entries())
	for i := range all {
		all[i].Rule = 0
	}
	return all
}

func enforced(r *Resolver) (in, out *Compiled) {
	i, o := r.Compile(1)
	return i.Enforced, o.Enforced
}

// TestCompile_NilAndEmptyAreNotConfused: no policy, a policy that allows nothing, and an empty list of peers.
func TestCompile_NilAndEmptyAreNotConfused(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default})
	in, out := enforced(r)
	require.True(t, in.AllowsAll() && out.AllowsAll() && in == out && !in.Isolated())

	r, _ = one(policy.Options{Mode: policy.Always})
	in, _ = enforced(r)
	require.True(t, !in.AllowsAll() && in.Isolated())
	require.Empty(t, entriesIn(in))

	r, _ = one(policy.Options{Mode: policy.Default}, policyOf("nothing", ingress(false, policy.Peers{}, anyPorts()),
		ingress(false, policy.Peers{Any: true}, policy.Ports{})))
	in, out = enforced(r)
	require.True(t, !in.AllowsAll() && in.Isolated() && out.Isolated())
	require.Empty(t, entriesIn(in))
	require.False(t, in.Lookup(Peer{Identity: web}, 6, 80).Allowed)

	r, _ = one(policy.Options{Mode: policy.Never}, policyOf("nothing"))
	in, out = enforced(r)
	require.True(t, in.AllowsAll() && out.AllowsAll())

	ingress, egress := r.Compile(2)
	require.Zero(t, ingress)
	require.Zero(t, egress)
}

// TestCompile_FewestEntries: an allow-all is one entry and makes all narrower entries unnecessary.
func TestCompile_FewestEntries(t *testing.T) {
	t.Parallel()
	everyone := policy.Peers{Any: true}
	for name, c := range map[string]struct {
		rules []policy.Rule
		want  []Entry
	}{
		"all peers, all ports": {[]policy.Rule{ingress(false, app("web"), tcp80), ingress(false, everyone, anyPorts()),
			ingress(false, cidrPeers(policy.Everyone, "10.0.0.0/8"), anyPorts())}, []Entry{{}}},
		"all peers, one port": {[]policy.Rule{ingress(false, everyone, tcp80), ingress(false, app("web"), tcp80)},
			[]Entry{{Key: Key{Protocol: 6, Port: 80, PortBits: 16}}}},
		"one peer, all ports": {[]policy.Rule{ingress(false, app("web"), tcp80), ingress(false, app("web"), anyPorts())},
			[]Entry{{Key: Key{Kind: Identity, Identity: web}}}},
		"a CIDR for all peers includes the CIDR for outside peers": {[]policy.Rule{ingress(false, cidrPeers(policy.Outside, "10.0.0.0/8"), tcp80),
			ingress(false, cidrPeers(policy.Everyone, "10.0.0.0/8"), anyPorts())}, []Entry{{Key: Key{Kind: CIDR, Identity: 0x01000001}}}},
		"an allow covered by a deny": {[]policy.Rule{ingress(false, app("web"), tcp80), ingress(true, app("web"), anyPorts())},
			[]Entry{{Key: Key{Kind: Identity, Identity: web}, Deny: true}}},
		"a port inside a denied range": {[]policy.Rule{ingress(false, app("web"), tcp80),
			ingress(true, app("web"), policy.Ports{List: []policy.Port{{Protocol: 6, Low: 64, High: 127}}})},
			[]Entry{{Key: Key{Kind: Identity, Identity: web, Protocol: 6, Port: 64, PortBits: 10}, Deny: true}}},
		"a denied port inside a range": {[]policy.Rule{ingress(true, app("web"), tcp80),
			ingress(false, app("web"), policy.Ports{List: []policy.Port{{Protocol: 6, Low: 64, High: 127}}})},
			[]Entry{{Key: Key{Kind: Identity, Identity: web, Protocol: 6, Port: 64, PortBits: 10}},
				{Key: Key{Kind: Identity, Identity: web, Protocol: 6, Port: 80, PortBits: 16}, Deny: true}}},
		"SCTP opens no TCP": {[]policy.Rule{ingress(false, app("web"), policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolSCTP, All: true}}})},
			[]Entry{{Key: Key{Kind: Identity, Identity: web, Protocol: policy.ProtocolSCTP}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", c.rules...))
			in, _ := enforced(r)
			require.Equal(t, c.want, entriesIn(in))
		})
	}
}

// TestCompile_LocalHost: with the option, the local host reaches its endpoints even if a rule denies every peer; without the option it does not.
func TestCompile_LocalHost(t *testing.T) {
	t.Parallel()
	host := policy.Peers{List: []policy.Peer{{Identities: []uint32{identity.Host}}}}
	p := policyOf("p", ingress(true, policy.Peers{Any: true}, tcp80), ingress(true, host, anyPorts()), ingress(false, policy.Peers{Any: true}, anyPorts()))
	for _, allow := range []bool{true, false} {
		r, _ := one(policy.Options{Mode: policy.Default, AllowLocalhost: allow}, p)
		in, out := enforced(r)
		answer := in.Lookup(Peer{Identity: identity.Host}, 6, 80)
		require.Equal(t, []bool{allow, allow}, []bool{answer.Allowed, answer.Localhost})
		require.Equal(t, allow, in.Shape()&ShapeLocalhost != 0)
		require.Zero(t, out.Shape()&ShapeLocalhost, "it reaches endpoints, not they it")
		for _, id := range []uint32{web, db, identity.World, identity.WorldIPv4, identity.WorldIPv6, identity.RemoteNode, identity.Health} {
			require.False(t, in.Lookup(Peer{Identity: id}, 6, 80).Allowed, id)
			require.True(t, in.Lookup(Peer{Identity: id}, 6, 81).Allowed, id)
		}
		r.UpsertIdentity(999, map[string]string{"k8s:app": "new"})
		in, _ = enforced(r)
		require.False(t, in.Lookup(Peer{Identity: 999}, 6, 80).Allowed)
	}
}

// TestCompile_Audit: the enforced result ignores the policy in audit mode, and the audited result includes it.
func TestCompile_Audit(t *testing.T) {
	t.Parallel()
	audit := policyOf("audit", ingress(true, app("web"), anyPorts()))
	audit.Audit = true
	audit.Parts[0].IsolatesEgress = false
	r, _ := one(policy.Options{Mode: policy.Default}, audit)
	in, out := r.Compile(1)
	require.True(t, in.Enforced.AllowsAll())
	require.False(t, in.Audited.Lookup(Peer{Identity: db}, 6, 80).Allowed)
	require.Nil(t, out.Audited, "it says nothing of egress")
	require.Equal(t, 1, r.SubjectsOf(audit.Ref))
}

// TestCompile_SharedByEndpointsOfTheSamePolicies: endpoints without policies share their result as well.
func TestCompile_SharedByEndpointsOfTheSamePolicies(t *testing.T) {
	t.Parallel()
	p := policyOf("p", ingress(false, app("web"), tcp80))
	p.Parts[0].Subject.Requirements = []policy.Requirement{label("app", "subject")}
	r, _ := one(policy.Options{Mode: policy.Default}, p)
	r.UpsertSubject(Subject{ID: 2, Labels: map[string]string{"k8s:app": "subject", "k8s:other": "label"}})
	r.UpsertSubject(Subject{ID: 3, Labels: map[string]string{"k8s:app": "other"}})
	first, _ := r.Compile(1)
	second, _ := r.Compile(2)
	third, _ := r.Compile(3)
	require.Same(t, first.Enforced, second.Enforced)
	require.True(t, third.Enforced.AllowsAll())

	same := policyOf("p", ingress(false, app("web"), tcp80))
	same.Parts[0].Subject = p.Parts[0].Subject
	r.UpsertPolicy(same)
	again, _ := r.Compile(1)
	require.Same(t, first.Enforced, again.Enforced, "a policy that was written anew and says the same")

	r.UpsertIdentity(999, map[string]string{"k8s:app": "web"})
	more, _ := r.Compile(2)
	d := more.Enforced.Diff(first.Enforced)
	require.Len(t, d.AddedAllows, 1)
	require.Equal(t, uint32(999), d.AddedAllows[0].Identity)
	require.Empty(t, slices.Concat(d.AddedDenies, d.Removed, d.Changed, d.Renamed))
	rule, known := more.Enforced.Rule(d.AddedAllows[0].Rule)
	require.True(t, known)
	require.Equal(t, Rule{Policy: p.Ref, Path: "spec.rules[0]"}, rule)
}

// TestCompile_16000Entries: one policy has 16,000 entries, and its ranges are counted separately.
func TestCompile_16000Entries(t *testing.T) {
	t.Parallel()
	p := policyOf("p", ingress(false, app("web"), policy.Ports{List: []policy.Port{{Protocol: 6, Low: 1024, High: 2048}}}))
	for i := range 15999 {
		port := uint16(2*i + 3000)
		p.Parts[0].Rules = append(p.Parts[0].Rules, ingress(i%2 == 0, app("web"), policy.Ports{List: []policy.Port{{Protocol: 17, Low: port, High: port}}}))
	}
	r, _ := one(policy.Options{Mode: policy.Default}, p)
	in, _ := enforced(r)
	entries, ranges := in.Len()
	require.Equal(t, 16000, entries)
	require.Equal(t, 1, ranges)
	require.False(t, in.Lookup(Peer{Identity: web}, 17, 3000).Allowed)
	require.True(t, in.Lookup(Peer{Identity: web}, 17, 3002).Allowed)
}

// TestResolver_NumbersDoNotOverflow: with 100,000 policies and cookies that wrap around, no cookie names two rules, and no rule gets a cookie below cookieMin.
func TestResolver_NumbersDoNotOverflow(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default})
	const policies = 100_000
	r.lastCookie = math.MaxUint32 - policies/2
	for i := range policies {
		r.UpsertPolicy(policyOf(fmt.Sprint("p", i), ingress(false, policy.Peers{List: []policy.Peer{{Identities: []uint32{1000 + uint32(i)}}}}, tcp80)))
	}
	in, _ := enforced(r)
	seen := map[uint32]uint32{}
	for e := range in.Entries() {
		if e.Rule < cookieMin {
			t.Fatalf("%+v names no rule", e)
		}
		seen[e.Rule] = e.Identity
	}
	require.Len(t, seen, policies, "some rules have the same number")
	for i := 0; i < policies; i += 9973 {
		answer := in.Lookup(Peer{Identity: 1000 + uint32(i)}, 6, 80)
		rule, _ := in.Rule(answer.Entry.Rule)
		require.Equal(t, fmt.Sprint("p", i), rule.Policy.Name)
	}
	require.False(t, in.Lookup(Peer{Identity: 1000 + policies}, 6, 80).Allowed)
}
