package policycompiler

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
)

// wrongAccount compares the counted peers of each account with the selectors of its rule sets. It describes the first difference; "" for none.
func wrongAccount(r *Resolver) string {
	for namespace, a := range r.accounts {
		held, n := map[*selector]struct{}{}, 0
		for set := range a.sets {
			maps.Copy(held, set.held)
		}
		for s := range held {
			n += s.size()
		}
		if n != a.peers || n > r.limits.peers {
			return fmt.Sprintf("namespace %q has %d peers and counts %d, the limit is %d", namespace, n, a.peers, r.limits.peers)
		}
	}
	return ""
}

// without returns n different peers that are all identities without a label that none has.
func without(n int, name string) (peers policy.Peers) {
	for i := range n {
		peers.List = append(peers.List, policy.Peer{Labels: &policy.Selector{Requirements: []policy.Requirement{
			{Source: "k8s", Key: fmt.Sprint(name, "-", i), Operator: policy.DoesNotExist}}}})
	}
	return peers
}

// resolverWith returns a resolver with n identities.
func resolverWith(n uint32) *Resolver {
	r := New(policy.Options{Mode: policy.Default})
	for i := range n {
		r.UpsertIdentity(5000+i, map[string]string{"k8s:app": fmt.Sprint(i)})
	}
	return r
}

// policyFor returns a policy for the endpoints with a label.
func policyFor(namespace, name, of string, rules ...policy.Rule) *policy.Policy {
	p := policyOf(name, rules...)
	p.Ref.Namespace = namespace
	p.Parts[0].Subject = *app(of).List[0].Labels
	return p
}

// The policies of a namespace may have many selectors with few peers, but not many selectors with many. Beyond the limit the peers of the largest rule set are
// released, and the rule sets of other endpoints and namespaces stay. When identities or policies are deleted, the rule set selects its peers again.
func TestAccount_LargestRuleSetIsReleased(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} { // identities are new, or policies are
		r := resolverWith(0)
		r.limits.peers = 1000
		identities := func() {
			for i := range uint32(100) {
				r.UpsertIdentity(5000+i, map[string]string{"k8s:app": fmt.Sprint(i)})
			}
		}
		if !late {
			identities()
		}
		small := policy.Peers{}
		for i := range 300 {
			small.List = append(small.List, app(fmt.Sprint(i)).List...)
		}
		for id, name := range []string{"large", "small", "same", "other"} {
			r.UpsertSubject(Subject{ID: uint16(id), Labels: map[string]string{"k8s:app": name}})
		}
		r.UpsertPolicy(policyFor("a", "small", "small", ingress(false, small, anyPorts()), ingress(false, without(3, "x"), anyPorts())))
		r.UpsertPolicy(policyFor("a", "same", "same", ingress(false, without(3, "x"), anyPorts())))
		r.UpsertPolicy(policyFor("b", "other", "other", ingress(false, without(9, "y"), anyPorts())))
		r.UpsertPolicy(policyFor("a", "large", "large", ingress(false, without(20, "x"), anyPorts()), ingress(false, without(7, "y"), anyPorts())))
		if late {
			identities()
		}
		exceeded := func(id uint16) string {
			in, _ := r.Compile(id)
			require.Empty(t, wrongAccount(r))
			return in.Enforced.Exceeded()
		}
		require.Equal(t, "1000 peers in different selections by labels of the policies of its namespace", exceeded(0))
		for id := range uint16(3) {
			require.Empty(t, exceeded(id+1))
		}
		require.Equal(t, 400, r.accounts["a"].peers, "selectors of two rule sets count once")
		require.Len(t, r.selectors.byKey, 300+3+9)

		for i := range uint32(70) {
			r.DeleteIdentity(5000 + i)
			exceeded(0)
		}
		require.Empty(t, exceeded(0), "30 * 27 + 30 peers")
		for i := range uint32(70) {
			r.UpsertIdentity(5000+i, map[string]string{"k8s:app": fmt.Sprint(i)})
			exceeded(0)
		}
		require.NotEmpty(t, exceeded(0))
		r.UpsertPolicy(policyFor("a", "large", "large", ingress(false, without(5, "x"), anyPorts())))
		for id := range uint16(4) {
			require.Empty(t, exceeded(id))
		}
		for id := range uint16(4) {
			r.DeleteSubject(id)
		}
		r.NeedsCompile()
		require.Empty(t, r.accounts)
		require.Empty(t, r.unselected)
		require.Empty(t, r.selectors.byKey)
	}
}

// A rule set without enough capacity left by another one selects its peers when the other one is deleted.
func TestAccount_SelectedAgain(t *testing.T) {
	t.Parallel()
	r := resolverWith(100)
	r.limits.peers = 1000
	for id, name := range []string{"one", "two"} {
		r.UpsertSubject(Subject{ID: uint16(id), Labels: map[string]string{"k8s:app": name}})
		r.UpsertPolicy(policyFor("a", name, name, ingress(false, without(8, name), anyPorts())))
	}
	exceeded := func() (all []bool) {
		for id := range uint16(2) {
			in, _ := r.Compile(id)
			all = append(all, in.Enforced != nil && in.Enforced.TooLarge())
		}
		require.Empty(t, wrongAccount(r))
		return all
	}
	require.ElementsMatch(t, []bool{true, false}, exceeded())
	selected := uint16(0)
	if exceeded()[0] {
		selected = 1
	}
	r.DeleteSubject(selected)
	require.True(t, r.NeedsCompile())
	in, _ := r.Compile(1 - selected)
	require.False(t, in.Enforced.TooLarge())
	require.Equal(t, 800, r.accounts["a"].peers)
}

// Rule sets with the same selectors are released together. While they do not fit, their peers are not selected again, and only one is tried when many identities
// were deleted.
func TestAccount_FewAttempts(t *testing.T) {
	t.Parallel()
	r := resolverWith(100)
	r.limits.peers = 1000
	released := 0
	r.selectors.shrink = func() bool {
		any := r.shrink()
		if any {
			released++
		}
		return any
	}
	for id := range uint16(5) {
		name := fmt.Sprint("subject-", id)
		r.UpsertSubject(Subject{ID: id, Labels: map[string]string{"k8s:app": name}})
		r.UpsertPolicy(policyFor("a", name, name, ingress(false, without(20, "x"), anyPorts())))
	}
	tooLarge := func() bool {
		r.NeedsCompile()
		in, _ := r.Compile(4)
		require.Empty(t, wrongAccount(r))
		return in.Enforced.TooLarge()
	}
	require.True(t, tooLarge())
	require.Equal(t, 1, released)
	for i := range uint32(13) {
		r.DeleteIdentity(5000 + i)
		require.True(t, tooLarge())
	}
	require.Equal(t, 2, released)
	for i := range uint32(50) {
		r.DeleteIdentity(5013 + i)
		tooLarge()
	}
	require.False(t, tooLarge(), "37 identities")
	require.Empty(t, r.unselected)
}

// A rule set is released when it exceeds the limit, before it has all its peers, so its size is not known then. It is not tried again for each peer that other
// rule sets need less, but for each eighth of the limit, and when they need none.
func TestAccount_FewAttemptsBesideOthers(t *testing.T) {
	t.Parallel()
	r := resolverWith(100)
	r.limits.peers = 200
	released := 0
	r.selectors.shrink = func() bool {
		any := r.shrink()
		if any {
			released++
		}
		return any
	}
	of := func(id uint16, peers policy.Peers) {
		name := fmt.Sprint("subject-", id)
		r.UpsertSubject(Subject{ID: id, Labels: map[string]string{"k8s:app": name}})
		r.UpsertPolicy(policyFor("a", name, name, ingress(false, peers, anyPorts())))
		r.NeedsCompile()
	}
	for id := range uint16(100) {
		of(id, app(fmt.Sprint(id)))
	}
	of(100, without(2, "x"))
	for id := range uint16(100) {
		in, _ := r.Compile(100)
		require.True(t, in.Enforced.TooLarge())
		r.DeleteSubject(id)
		r.NeedsCompile()
		require.Empty(t, wrongAccount(r))
	}
	in, _ := r.Compile(100)
	require.False(t, in.Enforced.TooLarge())
	require.Equal(t, 200, r.accounts["a"].peers)
	require.LessOrEqual(t, released, 6)
}

// Released rule sets cost nothing while neither peers nor rule sets go. The test is not parallel, because AllocsPerRun counts the allocations of all goroutines.
func TestAccount_NothingToSelectAgain(t *testing.T) {
	r := resolverWith(100)
	r.limits.peers = 50
	for id := range uint16(50) {
		name := fmt.Sprint("subject-", id)
		r.UpsertSubject(Subject{ID: id, Labels: map[string]string{"k8s:app": name}})
		r.UpsertPolicy(policyFor("a", name, name, ingress(false, without(1, name), anyPorts())))
	}
	for range 60 { // one attempt for each rule set
		r.NeedsCompile()
	}
	require.Len(t, r.unselected, 50)
	require.Zero(t, testing.AllocsPerRun(10, r.selectAgain))
}

// When selections have classes as peers, which are fewer, a released rule set selects its peers again.
func TestAccount_ClassesFit(t *testing.T) {
	t.Parallel()
	r := New(policy.Options{Mode: policy.Default})
	r.StartClasses(nil, 0)
	r.limits.peers = 50
	for i := range uint32(100) {
		r.UpsertIdentity(5000+i, map[string]string{"k8s:pod": fmt.Sprint(i), "k8s:" + labels.KeyNamespace: "one"})
	}
	r.UpsertSubject(Subject{ID: 1, Labels: map[string]string{"k8s:app": "one"}})
	r.UpsertPolicy(policyFor("a", "all", "one", ingress(false, choose(label(labels.KeyNamespace, "one")), anyPorts())))
	for range 3 {
		for on, want := range []int{0, 1} {
			r.SetClasses(on == 1)
			in, _ := enforced(r)
			require.Equal(t, on == 0, in.TooLarge())
			require.Equal(t, want, r.accounts["a"].peers)
		}
	}
}

// A rule set that does not fit after another one was selected again does not release that one, so the results stay the same without a change.
func TestAccount_AttemptReleasesNoOther(t *testing.T) {
	t.Parallel()
	r := resolverWith(100)
	r.limits.peers = 1000
	shared, own := without(9, "x").List, without(5, "y").List
	releases := 0
	r.selectors.shrink = func() bool {
		any := r.shrink()
		if any {
			releases++
		}
		return any
	}
	for id, list := range [][]policy.Peer{shared, shared[:5], append(own, shared[5:]...)} {
		name := fmt.Sprint("subject-", id)
		r.UpsertSubject(Subject{ID: uint16(id), Labels: map[string]string{"k8s:app": name}})
		r.UpsertPolicy(policyFor("a", name, name, ingress(false, policy.Peers{List: list}, anyPorts())))
	}
	for range 5 {
		var exceeded int
		for id := range uint16(3) {
			in, _ := r.Compile(id)
			if in.Enforced.TooLarge() {
				exceeded++
			}
		}
		require.Equal(t, 1, exceeded)
		require.LessOrEqual(t, releases, 2)
		require.Empty(t, wrongAccount(r))
		require.Equal(t, 900, r.accounts["a"].peers)
	}
}

// Rules that requirements narrow count with the peers that they would have otherwise, because a node keeps these as well.
func TestAccount_CountsNarrowedRules(t *testing.T) {
	t.Parallel()
	r := resolverWith(100)
	r.limits.peers = 1000
	p := policyFor("a", "p", "one", ingress(false, without(11, "x"), anyPorts()))
	p.Parts[0].Requirements = []policy.PeerRequirement{{Direction: policy.Ingress, Labels: policy.Selector{Requirements: []policy.Requirement{label("app", "1")}}}}
	r.UpsertSubject(Subject{ID: 1, Labels: map[string]string{"k8s:app": "one"}})
	r.UpsertPolicy(p)
	in, _ := enforced(r)
	require.True(t, in.TooLarge())
	require.Empty(t, wrongAccount(r))
	require.Empty(t, r.selectors.byKey)
}

// A selection of whole namespaces, or of all pods, has one peer for each class, so an endpoint that many teams share stays within the limit.
func TestAccount_ClassesCountOnce(t *testing.T) {
	t.Parallel()
	r := New(policy.Options{Mode: policy.Default})
	r.StartClasses(nil, 0)
	r.SetClasses(true)
	r.limits.peers = 250
	var rules []policy.Rule
	for i := range 100 {
		team := fmt.Sprint("team-", i)
		for k := range uint32(10) {
			r.UpsertIdentity(5000+uint32(i)*10+k, map[string]string{"k8s:pod": fmt.Sprint(k), "k8s:" + labels.KeyNamespace: team, "k8s:" + labels.KeyNamespaceLabels + ".team": team})
		}
		for _, key := range []string{labels.KeyNamespace, labels.KeyNamespaceLabels + ".team"} {
			rules = append(rules, ingress(false, choose(label(key, team)), anyPorts()), ingress(false, choose(), anyPorts()))
		}
	}
	r.UpsertSubject(Subject{ID: 1, Labels: map[string]string{"k8s:app": "one"}})
	r.UpsertPolicy(policyFor("a", "shared", "one", rules...))
	in, _ := enforced(r)
	require.Empty(t, in.Exceeded())
	require.Equal(t, 201, r.accounts["a"].peers)
}

// The peers beyond the limit are not computed: the memory is measured from before they are selected.
func TestAccount_BoundsMemory(t *testing.T) {
	var of [2]uint64
	for i, limit := range []int{10000, 1 << 30} {
		r := resolverWith(2000)
		r.NeedsCompile()
		r.limits = limits{1, limit} // entries are not computed
		r.UpsertSubject(Subject{ID: 1, Labels: map[string]string{"k8s:app": "one"}})
		of[i] = allocated(func() {
			for k := range 4 {
				r.UpsertPolicy(policyFor("a", fmt.Sprint(k), "one", ingress(false, without(100, fmt.Sprint(k)), anyPorts())))
			}
			in, _ := enforced(r)
			require.True(t, in.TooLarge())
		})
	}
	require.Less(t, 4*of[0], of[1])
}
