package policy_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

const questionsPerWorld = 60

// disagreement describes how the verdicts of the two evaluators differ; it is empty if they agree. The basis is the basis of the reference.
func disagreement(w *policytest.World, policies []*policy.Policy, n uint64) (what string, basis policy.Basis) {
	q := w.Question(n)
	got := policy.Evaluate(policies, w.Options, q)
	for _, audit := range []bool{false, true} {
		verdict := got.Verdict
		if audit {
			verdict = got.Audited.Verdict
		}
		if want := (naive{w: w, q: q, audit: audit}).allowed(); want != (verdict == policy.Allow) {
			return fmt.Sprintf("question %d %+v\naudit %t: the naive evaluator allows it: %t; the answer is %+v", n, q, audit, want, got), got.Basis
		}
	}
	return "", got.Basis
}

// soak returns a factor for the number of random clusters, which `make soak` sets.
func soak(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WAGGLE_TEST_SOAK")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("WAGGLE_TEST_SOAK=%s is no number from 1", text)
	}
	return n
}

// TestEvaluate_AgreesWithANaiveEvaluator compares the verdicts of both evaluators in random clusters.
func TestEvaluate_AgreesWithANaiveEvaluator(t *testing.T) {
	t.Parallel()
	worlds := 1000 * soak(t)
	count := map[policy.Basis]int{}
	for seed := range uint64(worlds) {
		w := policytest.New(seed, policytest.Small)
		policies := w.Policies()
		for i := range uint64(questionsPerWorld) {
			what, basis := disagreement(w, policies, i)
			if count[basis]++; what == "" {
				continue
			}
			small := policytest.Shrink(w, func(w *policytest.World) bool { what, _ := disagreement(w, w.Policies(), i); return what != "" })
			what, _ = disagreement(small, small.Policies(), i)
			first, _ := disagreement(w, policies, i)
			t.Fatalf("%s\n%s\nbefore it was made smaller: %s\n%s", what, small, first, w)
		}
	}
	t.Logf("%d verdicts, by what they rest on: %v", worlds*questionsPerWorld, count)
	for _, basis := range []policy.Basis{policy.ByRule, policy.ByDefault, policy.NotIsolated, policy.LocalHost, policy.NotEnforced} {
		if count[basis] < worlds {
			t.Errorf("only %d verdicts rest on %s: the worlds do not try it", count[basis], basis)
		}
	}
}
