package policycompiler

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

var (
	seed   = flag.Uint64("policymap.seed", 1, "the first seed of the tests with random worlds")
	worlds = flag.Uint64("policymap.worlds", 1000, "how many random worlds the verdicts are compared in, with 100 questions each")
)

// compiledWorld is a world with its policies and their resolver.
type compiledWorld struct {
	*policytest.World
	policies []*policy.Policy
	resolver *Resolver
}

// features are the optional features that the datapath supports.
type features struct{ nested, classes bool }

func compile(w *policytest.World, with features) *compiledWorld {
	s := stateOf(w)
	s.nested, s.classes = with.nested, with.classes
	r := s.resolver()
	s.nameCIDRs(r, false)
	return &compiledWorld{w, w.Policies(), r}
}

// subjectOf returns the endpoint ID of the subject of a question.
func (w *compiledWorld) subjectOf(q *policy.Question) uint16 {
	return subjectID(slices.IndexFunc(w.Pods, func(p policytest.Pod) bool { return p.Addrs[0] == q.Subject.Addr }))
}

// decision returns the compiled policies of the subject of a question, in its direction.
func (w *compiledWorld) decision(q *policy.Question) Decision {
	ingress, egress := w.resolver.Compile(w.subjectOf(q))
	if q.Direction == policy.Ingress {
		return ingress
	}
	return egress
}

// disagrees describes the difference between the compiled policies and the reference for a question; empty if there is none.
func (w *compiledWorld) disagrees(q policy.Question) string {
	want := policy.Evaluate(w.policies, w.Options, q)
	d := w.decision(&q)
	peer := w.resolver.Peer(q.Peer.Identity, q.Peer.Addr)
	for _, of := range []struct {
		name string
		is   *Compiled
		want policy.Evaluation
	}{{"enforced", d.Enforced, want.Evaluation}, {"audited", d.Audited, want.Audited}} {
		if of.is == nil && of.name == "audited" {
			of.is = d.Enforced // no policy in audit mode applies
		}
		answer := of.is.Lookup(peer, q.Protocol, q.Port)
		if wrong := disagree(of.is, answer, of.want); wrong != "" {
			return fmt.Sprintf("%s %+v: %s; peer %+v, entry %+v, reference %+v\n%s", of.name, q, wrong, peer, answer.Entry, of.want, render(of.is))
		}
	}
	return ""
}

func disagree(is *Compiled, answer Result, want policy.Evaluation) string {
	if answer.Allowed != (want.Verdict == policy.Allow) {
		return fmt.Sprintf("the datapath allows: %t", answer.Allowed)
	}
	if is.Isolated() != want.Isolated && (want.Basis == policy.ByRule || want.Basis == policy.ByDefault || want.Basis == policy.NotIsolated) {
		return fmt.Sprintf("isolated: %t", is.Isolated())
	}
	if answer.Localhost != (want.Basis == policy.LocalHost) && !is.AllowsAll() {
		return fmt.Sprintf("the local host: %t", answer.Localhost)
	}
	if want.Basis != policy.ByRule || answer.Entry == nil || answer.Entry.Rule < cookieMin {
		if want.Basis == policy.ByRule && want.Verdict == policy.Deny {
			return "it does not know that a rule denies"
		}
		return ""
	}
	rule, _ := is.Rule(answer.Entry.Rule)
	for _, match := range want.Decided {
		if match.Policy == rule.Policy && match.Path == rule.Path {
			return ""
		}
	}
	return fmt.Sprintf("it names a rule that does not decide: %+v", rule)
}

// TestCompiled_AnswersAsTheReference: for random worlds and questions, a lookup in the entries gives the same verdict as [policy.Evaluate].
func TestCompiled_AnswersAsTheReference(t *testing.T) {
	t.Parallel()
	for _, with := range []features{{}, {nested: true}, {classes: true}, {nested: true, classes: true}} {
		t.Run(fmt.Sprintf("%+v", with), func(t *testing.T) {
			t.Parallel()
			matchesReference(t, with)
		})
	}
}

func matchesReference(t *testing.T, with features) {
	const questions = 100
	allowed, denied := 0, 0
	for n := *seed; n < *seed+*worlds; n++ {
		w := compile(policytest.New(n, policytest.Small), with)
		for i := range uint64(questions) {
			q := w.Question(i)
			if wrong := w.disagrees(q); wrong != "" {
				t.Logf("seed %d, question %d: %s", n, i, wrong)
				fails := func(smaller *policytest.World) bool { return compile(smaller, with).disagrees(q) != "" }
				smallest := compile(policytest.Shrink(w.World, fails), with)
				t.Fatalf("seed %d, question %d: %s\n%s", n, i, smallest.disagrees(q), smallest)
			}
			if policy.Evaluate(w.policies, w.Options, q).Verdict == policy.Allow {
				allowed++
			} else {
				denied++
			}
		}
	}
	if min(allowed, denied) < (allowed+denied)/10 {
		t.Errorf("%d allowed and %d denied: the questions are not good enough", allowed, denied)
	}
}
