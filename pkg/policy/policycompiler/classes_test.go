package policycompiler

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

const classNamespaces = 50

var testAddr = netip.MustParseAddr("10.0.0.1")

// podLabels returns the labels of the i-th identity of a cluster.
func podLabels(i int) map[string]string {
	namespace := i % classNamespaces
	return map[string]string{
		"k8s:app":                    fmt.Sprint("app-", i/classNamespaces),
		"k8s:" + labels.KeyNamespace: fmt.Sprint("ns-", namespace),
		"k8s:" + labels.KeyNamespaceLabels + ".team": fmt.Sprint("team-", namespace%10),
		"k8s:" + labels.KeyCluster:                   "default",
	}
}

func choose(list ...policy.Requirement) policy.Peers {
	return policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{Requirements: list}}}}
}

func exists(key string) policy.Requirement {
	return policy.Requirement{Source: "k8s", Key: key, Operator: policy.Exists}
}

// entity returns the peers of a parsed rule with an entity.
func entity(t *testing.T, name string, env policy.Environment) policy.Peers {
	t.Helper()
	spec := fmt.Sprintf(`{"endpointSelector":{},"ingress":[{"fromEntities":[%q]}]}`, name)
	p := policy.FromCilium(&cilium.Policy{Namespace: "default", Name: "p", Spec: json.RawMessage(spec)}, env)
	require.Empty(t, p.Problems)
	return p.Parts[0].Rules[0].Peers
}

// TestCompile_Classes_EntriesDoNotGrowWithIdentities: a rule has one entry for all pods, one for the pods of a namespace, one for each namespace of a team, and
// one for the pods of the entity cluster, beside those of its reserved identities. A new identity of these namespaces changes no rule set.
func TestCompile_Classes_EntriesDoNotGrowWithIdentities(t *testing.T) {
	t.Parallel()
	const reserved = 7 // identities of the entity cluster: of nodes and of the API server, health, init, unmanaged and ingress
	cases := map[string]struct {
		peers   policy.Peers
		entries int
	}{
		"all pods":                 {choose(exists(labels.KeyNamespace)), 1},
		"the entity cluster":       {entity(t, "cluster", policy.Environment{Cluster: "default"}), 1 + reserved},
		"the unnamed cluster":      {entity(t, "cluster", policy.Environment{}), 1 + reserved},
		"the cluster":              {choose(label(labels.KeyCluster, "default")), 1},
		"another cluster":          {choose(label(labels.KeyCluster, "other")), 0},
		"a namespace":              {choose(label(labels.KeyNamespace, "ns-7")), 1},
		"the namespaces of a team": {choose(exists(labels.KeyNamespace), label(labels.KeyNamespaceLabels+".team", "team-3")), classNamespaces / 10},
		"all but one namespace": {choose(exists(labels.KeyNamespace), policy.Requirement{Source: policy.AnySource, Key: labels.KeyNamespace,
			Operator: policy.NotIn, Values: []string{"ns-7"}}), classNamespaces - 1},
	}
	r, _ := one(policy.Options{Mode: policy.Default})
	r.SetClasses(true)
	const first, extra = 512, 65530
	n, seen := uint32(0), map[string][]bool{}
	for _, identities := range []uint32{1000, 65000} {
		for ; n < identities; n++ {
			r.UpsertIdentity(first+n, podLabels(int(n)))
		}
		for name, c := range cases {
			for _, deny := range []bool{false, true} {
				r.UpsertPolicy(policyOf("p", ingress(deny, c.peers, tcp80)))
				before, _ := enforced(r)
				t.Attr(fmt.Sprintf("entries:%s:%d", strings.ReplaceAll(name, " ", "_"), identities), fmt.Sprint(len(entriesIn(before))))
				require.Len(t, entriesIn(before), c.entries, "%s, %d identities", name, identities)
				require.Equal(t, c.entries > 0, before.Shape()&ShapeClasses != 0)

				for i, namespace := range []int{7, 8, 13} {
					extra := extra + uint32(i)
					r.UpsertIdentity(extra, podLabels(namespace+classNamespaces*2000))
					require.False(t, r.NeedsCompile(), name)
					after, _ := enforced(r)
					require.Same(t, before, after, name)
					answer := after.Lookup(r.Peer(extra, testAddr), policy.ProtocolTCP, 80)
					chosen := slices.ContainsFunc(c.peers.List, func(p policy.Peer) bool { return p.Labels != nil && p.Labels.Matches(podLabels(namespace)) })
					require.Equal(t, chosen, answer.Entry != nil, name)
					require.Equal(t, !deny && chosen, answer.Allowed, name)
					seen[name] = append(seen[name], chosen)
					r.DeleteIdentity(extra)
				}
			}
		}
	}
	for _, name := range []string{"a namespace", "the namespaces of a team", "all but one namespace"} {
		require.Subset(t, seen[name], []bool{false, true}, name)
	}
}

// TestResolver_Classes_OfIdentities: identities of pods have two classes, regardless of the policies; other identities have none.
func TestResolver_Classes_OfIdentities(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default})
	foreign := podLabels(1)
	foreign["other:"+labels.KeyNamespace] = "ns-2"
	elsewhere := podLabels(1)
	elsewhere["k8s:"+labels.KeyCluster] = "other"
	for number, of := range map[uint32]map[string]string{400: podLabels(1), 401: podLabels(1 + classNamespaces), 402: podLabels(2), 403: foreign,
		404: elsewhere, 65536: podLabels(1)} {
		r.UpsertIdentity(number, of)
	}
	first, second, third := r.ClassesOf(400), r.ClassesOf(402), r.ClassesOf(404)
	require.Equal(t, first, r.ClassesOf(401))
	require.Equal(t, first.Cluster, second.Cluster)
	numbers := []uint32{first.Cluster, first.Namespace, second.Namespace, third.Cluster, third.Namespace}
	slices.Sort(numbers)
	require.Equal(t, []uint32{1, 2, 3, 4, 5}, numbers)
	for _, number := range []uint32{403, 65536, web, identity.Host, identity.World} {
		require.Zero(t, r.ClassesOf(number), number)
	}
	require.Equal(t, []uint32{400, 401, 402, 404}, r.UnappliedClasses())
}

// TestResolver_Classes_KeepTheirNumbers: after a restart a class has the number that most of its identities had. If the identities with a number are equally
// divided between two namespaces, or the identities of a namespace between two numbers, none of these numbers is used.
func TestResolver_Classes_KeepTheirNumbers(t *testing.T) {
	t.Parallel()
	start := func(have map[uint32]Classes, of map[uint32]map[string]string) *Resolver {
		s := newState(policy.Options{Mode: policy.Default})
		s.applied, s.identities = have, of
		r := s.resolver()
		s.sameClasses(r)
		return r
	}
	r := start(map[uint32]Classes{400: {7, 3}, 401: {7, 9}, 403: {7, 20}}, map[uint32]map[string]string{400: podLabels(1), 401: podLabels(2), 402: podLabels(3)})
	require.Equal(t, []Classes{{7, 3}, {7, 9}, {7, 21}}, []Classes{r.ClassesOf(400), r.ClassesOf(401), r.ClassesOf(402)})

	r = start(map[uint32]Classes{400: {7, 3}, 401: {7, 3}}, map[uint32]map[string]string{400: podLabels(1), 401: podLabels(2)})
	first, second := r.ClassesOf(400), r.ClassesOf(401)
	require.Equal(t, first.Cluster, second.Cluster)
	require.NotEqual(t, first.Namespace, second.Namespace)
	require.NotContains(t, []uint32{first.Namespace, second.Namespace}, uint32(3))

	for name, c := range map[string]struct {
		namespaces             []int    // of the identities
		previous, while, after []uint32 // classes of the namespaces: in the datapath, current until the datapath has removed these, and later; 0 is none or a new one
	}{
		"an identity moved from another namespace":                           {[]int{1, 1, 1}, []uint32{9, 12, 12}, []uint32{0, 12, 12}, []uint32{12, 12, 12}},
		"an identity went to another namespace":                              {[]int{2, 1, 1}, []uint32{9, 9, 9}, []uint32{0, 9, 9}, []uint32{0, 9, 9}},
		"an identity moved to another namespace, which has other identities": {[]int{2, 1, 1, 2, 2}, []uint32{9, 9, 9, 12, 12}, []uint32{0, 9, 9, 12, 12}, []uint32{12, 9, 9, 12, 12}},
		"as many of a namespace have two numbers":                            {[]int{1, 1}, []uint32{9, 12}, []uint32{0, 0}, []uint32{0, 0}},
		"as many of a number are of two namespaces":                          {[]int{1, 2, 3}, []uint32{9, 9, 12}, []uint32{0, 0, 12}, []uint32{0, 0, 12}},
		"two namespaces have exchanged an identity":                          {[]int{1, 1, 2, 1, 2, 2}, []uint32{9, 9, 9, 12, 12, 12}, []uint32{9, 9, 0, 0, 12, 12}, []uint32{9, 9, 12, 9, 12, 12}},
	} {
		s := newState(policy.Options{Mode: policy.Default})
		s.applied = map[uint32]Classes{}
		for i, namespace := range c.namespaces {
			s.identities[400+uint32(i)] = podLabels(namespace + i*classNamespaces)
			s.applied[400+uint32(i)] = Classes{7, c.previous[i]}
		}
		r := s.resolver()
		now := func() (numbers []uint32) {
			for i := range c.namespaces {
				numbers = append(numbers, r.ClassesOf(400+uint32(i)).Namespace)
			}
			return numbers
		}
		require.Equal(t, c.while, now(), name)
		s.sameClasses(r)
		of := map[int]uint32{}
		for i, number := range now() {
			if c.after[i] != 0 {
				require.Equal(t, c.after[i], number, name)
			} else {
				require.Greater(t, number, slices.Max(c.previous), name)
			}
			of[c.namespaces[i]] = number
		}
		for i, number := range now() {
			require.Equal(t, of[c.namespaces[i]], number, name)
		}
		require.Len(t, slices.Compact(slices.Sorted(maps.Values(of))), len(of), "%s: no two have the same", name)
	}
}

// TestResolver_Classes_NoDenyIsMissingWhileLabelsChange: when identities get other labels, in random worlds, every rule that denies them has its effect in each
// step: while the datapath has their previous classes, none, and their current classes.
func TestResolver_Classes_NoDenyIsMissingWhileLabelsChange(t *testing.T) {
	t.Parallel()
	relabelled, denied := 0, 0
	for n := *seed; n < *seed+*worlds/4; n++ {
		w, before := policytest.New(n, policytest.Small), policytest.New(n+1<<32, policytest.Small)
		s := stateOf(w)
		s.classes, s.nested = true, n%2 == 0
		now := s.identities
		s.identities = before.Identities()
		r := s.resolver()
		s.sameClasses(r)
		s.identities = now
		for number, of := range now {
			r.UpsertIdentity(number, of)
		}
		s.nameCIDRs(r, false)
		c := &compiledWorld{w, w.Policies(), r}
		compiled := map[policy.Direction]map[uint16]Decision{policy.Ingress: {}, policy.Egress: {}}
		compileAll := func() {
			for id := range s.subjects {
				compiled[policy.Ingress][id], compiled[policy.Egress][id] = r.Compile(id)
			}
		}
		check := func(step string, exact bool, classes func(uint32) Classes) {
			for i := range uint64(40) {
				q := w.Question(i)
				is := compiled[q.Direction][c.subjectOf(&q)].Enforced
				peer := r.Peer(q.Peer.Identity, q.Peer.Addr)
				peer.Classes = classes(q.Peer.Identity)
				want := policy.Evaluate(c.policies, w.Options, q)
				allowed := is.Lookup(peer, q.Protocol, q.Port).Allowed
				byRule := want.Verdict == policy.Deny && want.Basis == policy.ByRule
				if byRule {
					denied++
				}
				if allowed && byRule || exact && allowed != (want.Verdict == policy.Allow) {
					t.Fatalf("seed %d, question %d, %s: %+v, peer %+v is allowed %t, reference %+v\n%s%s", n, i, step, q, peer, allowed, want, render(is), w)
				}
			}
		}
		compileAll()
		previous := maps.Clone(r.selectors.applied)
		check("former classes", false, func(id uint32) Classes { return previous[id] })
		changed := map[uint32]bool{}
		for _, number := range r.UnappliedClasses() {
			if r.ClassesOf(number) == (Classes{}) {
				changed[number] = true
				relabelled++
			}
		}
		check("no classes", true, func(id uint32) Classes {
			if changed[id] {
				return Classes{}
			}
			return r.ClassesOf(id)
		})
		s.sameClasses(r)
		check("their own classes, former entries", true, r.ClassesOf)
		compileAll()
		check("their own classes", true, r.ClassesOf)
	}
	if relabelled == 0 || denied == 0 {
		t.Errorf("%d identities got other labels, %d questions were denied by a rule", relabelled, denied)
	}
}

// TestCompile_Classes_NamedPorts: a rule about a namespace applies to the named ports of its pods, whether the pod or the identity is added first.
func TestCompile_Classes_NamedPorts(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, choose(label(labels.KeyNamespace, "ns-1")), named)))
	r.SetClasses(true)
	for i, podFirst := range []bool{true, false} {
		number := 400 + uint32(i)
		pod := Pod{Identity: number, Ports: []policy.NamedPort{{Name: "http", Protocol: policy.ProtocolTCP, Number: 8080}}}
		if podFirst {
			r.UpsertPod(fmt.Sprint(number), pod)
			enforced(r)
		}
		r.UpsertIdentity(number, podLabels(1+i*classNamespaces))
		enforced(r)
		r.UpsertPod(fmt.Sprint(number), pod)
		_, out := enforced(r)
		require.True(t, out.Lookup(r.Peer(number, testAddr), policy.ProtocolTCP, 8080).Allowed)
		require.False(t, out.Lookup(r.Peer(number, testAddr), policy.ProtocolTCP, 80).Allowed)
	}
	r.UpsertPod("other", Pod{Identity: 402, Ports: []policy.NamedPort{{Name: "dns", Protocol: policy.ProtocolTCP, Number: 53}}})
	r.UpsertIdentity(402, podLabels(1+2*classNamespaces))
	require.False(t, r.NeedsCompile(), "no rule names a port of its pod")
	r.DeleteIdentity(400)
	require.True(t, r.NeedsCompile())
	_, out := enforced(r)
	require.False(t, out.Lookup(r.Peer(400, testAddr), policy.ProtocolTCP, 8080).Allowed)
	require.True(t, out.Lookup(r.Peer(401, testAddr), policy.ProtocolTCP, 8080).Allowed)
}

// TestResolver_SetClasses_SwitchesBothWays: the same rules have entries about identities, about classes, and about identities again.
func TestResolver_SetClasses_SwitchesBothWays(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", ingress(false, choose(exists(labels.KeyNamespace)), tcp80)))
	for i := range 100 {
		r.UpsertIdentity(1000+uint32(i), podLabels(i))
	}
	for _, on := range []bool{false, true, false} {
		r.SetClasses(on)
		in, _ := enforced(r)
		require.Len(t, entriesIn(in), map[bool]int{false: 100, true: 1}[on])
		require.True(t, in.Lookup(r.Peer(1007, testAddr), policy.ProtocolTCP, 80).Allowed)
		require.False(t, in.Lookup(r.Peer(web, testAddr), policy.ProtocolTCP, 80).Allowed)
	}
}
