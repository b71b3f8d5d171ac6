package policycompiler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

// change is one update of a resolver.
type change struct {
	text string
	do   func(*state, *Resolver) // nil: compare
}

// changesTo returns all single changes that turn one state into another, except changes of the identities of CIDRs.
func changesTo(from, to *state) (all []change) {
	add := func(do func(*state, *Resolver), format string, args ...any) {
		all = append(all, change{fmt.Sprintf(format, args...), do})
	}
	for ref, p := range to.policies {
		add(func(s *state, r *Resolver) { s.policies[ref] = p; r.UpsertPolicy(p) }, "policy %s", ref)
	}
	for ref := range from.policies {
		if to.policies[ref] == nil {
			add(func(s *state, r *Resolver) { delete(s.policies, ref); r.DeletePolicy(ref) }, "no policy %s", ref)
		}
	}
	for number, labels := range to.identities {
		add(func(s *state, r *Resolver) { s.identities[number] = labels; r.UpsertIdentity(number, labels) }, "identity %d %v", number, labels)
	}
	for number := range from.identities {
		if to.identities[number] == nil {
			add(func(s *state, r *Resolver) { delete(s.identities, number); r.DeleteIdentity(number) }, "no identity %d", number)
		}
	}
	for key, pod := range to.pods {
		add(func(s *state, r *Resolver) { s.pods[key] = pod; r.UpsertPod(key, pod) }, "pod %s %v", key, pod)
	}
	for key := range from.pods {
		if _, stays := to.pods[key]; !stays {
			add(func(s *state, r *Resolver) { delete(s.pods, key); r.UpsertPod(key) }, "no pod %s", key)
		}
	}
	for id, subject := range to.subjects {
		add(func(s *state, r *Resolver) { s.subjects[id] = subject; r.UpsertSubject(subject) }, "subject %v", subject)
	}
	for id := range from.subjects {
		if _, stays := to.subjects[id]; !stays {
			add(func(s *state, r *Resolver) { delete(s.subjects, id); r.DeleteSubject(id) }, "no subject %d", id)
		}
	}
	return all
}

// history returns the changes that lead from nothing to one world, to a second one, back to the first, and to nothing.
func history(seed uint64) (options policy.Options, all []change) {
	a, b := policytest.New(seed, policytest.Small), policytest.New(seed+1<<32, policytest.Small)
	options = a.Options
	if options.Mode == policy.Never {
		options.Mode = policy.Default
	}
	b.Options = options
	random := rand.New(rand.NewPCG(seed, 7))
	nothing, one, other := newState(options), stateOf(a), stateOf(b)
	for _, key := range slices.Sorted(maps.Keys(other.pods)) { // some pods are uncertain
		pod := other.pods[key]
		pod.DenyOnly = random.IntN(3) == 0
		other.pods[key] = pod
	}
	for _, step := range [][2]*state{{nothing, one}, {one, other}, {other, one}, {one, nothing}} {
		changes := changesTo(step[0], step[1])
		for range 1 + len(changes)/6 {
			keep := random.IntN(2) == 0
			changes = append(changes, change{fmt.Sprintf("name CIDRs, keep %t", keep), func(s *state, r *Resolver) { s.nameCIDRs(r, keep) }})
		}
		slices.SortFunc(changes, func(x, y change) int { return strings.Compare(x.text, y.text) }) // maps have no order
		random.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		for i, c := range changes {
			if all = append(all, c); i%3 == 0 {
				all = append(all, change{text: "compare"})
			}
		}
	}
	return options, all
}

// replay applies all changes to a resolver and describes the first failure; empty if there is none.
func replay(options policy.Options, with features, changes []change) string {
	s := newState(options)
	s.nested, s.classes = with.nested, with.classes
	r := s.resolver()
	type past struct {
		is       *Compiled
		rendered string
	}
	var pasts []past
	last := map[string]*Compiled{}
	for _, c := range changes {
		if c.do != nil {
			c.do(s, r)
			continue
		}
		same := s.sameClasses(r)
		got, want := renderAll(r, s), renderAll(same.resolver(), s)
		if got != want {
			return fmt.Sprintf("the resolver has\n%sand a new one\n%s", got, want)
		}
		if got, want := r.NamedCIDRs(), same.resolver().NamedCIDRs(); !slices.Equal(got, want) {
			return fmt.Sprintf("the resolver names %v, a new one %v", got, want)
		}
		if got, want := chosen(r), chosen(same.resolver()); !reflect.DeepEqual(got, want) {
			return fmt.Sprintf("the resolver has selectors %v, a new one %v", got, want)
		}
		if wrong := wrongAccount(r); wrong != "" {
			return wrong
		}
		for id := range s.subjects {
			ingress, egress := r.Compile(id)
			in, out := r.Compile(id)
			if ingress != in || egress != out {
				return fmt.Sprintf("endpoint %d is compiled twice to different ones", id)
			}
			for name, is := range map[string]*Compiled{"in": ingress.Enforced, "out": egress.Enforced, "audited in": ingress.Audited} {
				key := fmt.Sprint(id, name)
				if is == nil || is == last[key] {
					continue
				}
				if wrong := wrongDiff(last[key], is); wrong != "" {
					return fmt.Sprintf("endpoint %s: %s", key, wrong)
				}
				pasts, last[key] = append(pasts, past{is, render(is)}), is
			}
		}
	}
	for _, p := range pasts {
		if now := render(p.is); now != p.rendered {
			return fmt.Sprintf("a compiled policy has changed from\n%sto\n%s", p.rendered, now)
		}
	}
	left := len(r.rulesets) + len(r.cookies) + len(r.selectors.byKey) + len(r.prefixes.of) + len(r.unsettled) + len(r.namedRules) + len(r.podsOf) + len(r.serving) +
		len(r.selectors.arrivals) + len(r.accounts) + len(r.overdrawn) + len(r.unselected)
	if len(s.policies)+len(s.subjects)+len(s.pods) == 0 && left != 0 {
		return fmt.Sprintf("%d things are left of nothing", left)
	}
	return ""
}

// wrongDiff applies a [Diff] and describes the first deviation from its target; empty if there is none.
func wrongDiff(from, to *Compiled) string {
	entries := map[Key]Entry{}
	if from != nil {
		for e := range from.Entries() {
			entries[e.Key] = e
		}
	}
	d := to.Diff(from)
	for _, e := range d.Removed {
		if entries[e.Key] != e {
			return fmt.Sprintf("%+v is removed and was not there", e)
		}
		delete(entries, e.Key)
	}
	for _, add := range [][]Entry{d.AddedAllows, d.AddedDenies} {
		for _, e := range add {
			if _, there := entries[e.Key]; there {
				return fmt.Sprintf("%+v is added and was there", e)
			}
			entries[e.Key] = e
		}
	}
	for _, e := range d.Changed {
		if was := entries[e.Key]; was.Deny == e.Deny {
			return fmt.Sprintf("%+v is not another verdict than %+v", e, was)
		}
		entries[e.Key] = e
	}
	for _, e := range d.Renamed {
		if was := entries[e.Key]; was.Deny != e.Deny || was.Rule == e.Rule {
			return fmt.Sprintf("%+v has not another rule than %+v", e, was)
		}
		entries[e.Key] = e
	}
	n, ranges := to.Len()
	for e := range to.Entries() {
		if entries[e.Key] != e {
			return fmt.Sprintf("%+v is missing", e)
		}
		n--
	}
	if n+ranges != 0 || len(entries) != len(slices.Collect(to.Entries())) {
		return "entries are left, or counted wrongly"
	}
	return ""
}

// TestResolver_ChangesEqualFreshStart checks that after any changes in any order, the result equals the result of a new resolver with the last
// state.
func TestResolver_ChangesEqualFreshStart(t *testing.T) {
	t.Parallel()
	for n := *seed; n < *seed+*worlds/20; n++ {
		options, changes := history(n)
		with := features{nested: n%2 == 0, classes: n%4 < 2}
		wrong := replay(options, with, changes)
		if wrong == "" {
			continue
		}
		t.Logf("seed %d: %s", n, wrong)
		for i := len(changes) - 1; i >= 0; i-- { // removes changes that the failure does not need, from the end
			if less := slices.Delete(slices.Clone(changes), i, i+1); replay(options, with, less) != "" {
				changes = less
			}
		}
		var b strings.Builder
		for _, c := range changes {
			fmt.Fprintln(&b, c.text)
		}
		t.Fatalf("seed %d, options %+v: %s\nchanges:\n%s", n, options, replay(options, with, changes), &b)
	}
}

// TestResolver_CIDRsWithoutIdentity_AllowNothingDenied checks that while prefixes have no identity, entries allow no connection that the policies deny.
func TestResolver_CIDRsWithoutIdentity_AllowNothingDenied(t *testing.T) {
	t.Parallel()
	missing := 0
	for n := *seed; n < *seed+*worlds; n++ {
		w := policytest.New(n, policytest.Small)
		s := stateOf(w)
		s.nested, s.classes = n%2 == 0, n%4 < 2
		r := s.resolver()
		s.nameCIDRs(r, false)
		random := rand.New(rand.NewPCG(n, 3))
		some := maps.Clone(s.cidrs)
		for i, prefix := range r.NamedCIDRs() {
			if random.IntN(3) > 0 || i == 0 {
				delete(some, prefix)
			}
		}
		r.SetCIDRs(some)
		for id := range s.subjects {
			r.Compile(id)
		}
		for _, prefix := range r.NamedCIDRs() {
			if random.IntN(3) == 0 {
				some[prefix] = s.cidrs[prefix]
			}
		}
		r.SetCIDRs(some)
		c := &compiledWorld{w, w.Policies(), r}
		for i := range uint64(30) {
			q := w.Question(i)
			is := c.decision(&q).Enforced
			missing += len(is.missing)
			answer := is.Lookup(r.Peer(q.Peer.Identity, q.Peer.Addr), q.Protocol, q.Port)
			if want := policy.Evaluate(c.policies, w.Options, q); answer.Allowed && want.Verdict == policy.Deny {
				t.Fatalf("seed %d, question %d: %+v is allowed by %+v\n%s%s", n, i, q, answer.Entry, render(is), w)
			}
		}
	}
	if missing == 0 {
		t.Error("no prefix was missing anywhere")
	}
}

// chosen returns the identities and classes of each choice of peers by labels or numbers, with the policies that make the choice.
func chosen(r *Resolver) map[string][]string {
	r.settle()
	all := map[string][]string{}
	for ref, p := range r.policies {
		p.eachRule(func(rule *rule) {
			for _, s := range rule.selectors {
				all[s.key] = append(all[s.key], fmt.Sprint(ref, s.identities, s.classes))
			}
		})
	}
	for _, uses := range all {
		slices.Sort(uses)
	}
	return all
}
