package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCheck_BudgetOfATier(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used     time.Duration
		failed   bool
		warnings int
	}{
		{100 * time.Second, false, 0},
		{101 * time.Second, false, 1},
		{200 * time.Second, false, 1},
		{201 * time.Second, true, 0},
	} {
		for _, slowness := range []float64{1, 2.5} {
			v := verdict{tier: tier{budget: 100 * time.Second, scaled: true}, cpu: time.Duration(float64(c.used) * slowness), slowness: slowness}
			if warnings := v.check(true); len(warnings) != c.warnings || (len(v.failed) > 0) != c.failed {
				t.Errorf("%v of 100 s, slowness %v: failed %q, warnings %q", c.used, slowness, v.failed, warnings)
			}
		}
	}
}

func TestCheck_SkipIsAFailureInCI(t *testing.T) {
	t.Parallel()
	v := verdict{tier: tier{budget: time.Hour}, slowness: 1, skips: []outcome{{name: module + "/bpf TestX", output: "needs root"}}}
	if v.check(true); len(v.failed) != 1 || !strings.Contains(v.failed[0], "needs root") {
		t.Errorf("in CI: failed %q, want the skip with its reason", v.failed)
	}
	v.failed = nil
	if warnings := v.check(false); len(v.failed) != 0 || len(warnings) != 1 {
		t.Errorf("elsewhere: failed %q, warnings %q, want a warning", v.failed, warnings)
	}
}

func TestCheck_SlowTestsAreListed(t *testing.T) {
	t.Parallel()
	const listed = "bpf/tests TestObjects_AreBuiltFromTheSources"
	for _, c := range []struct {
		name     string
		took     time.Duration
		failed   bool
		warnings int
	}{
		{"bpf TestX", 16 * time.Second, false, 1},
		{"bpf TestX", 91 * time.Second, true, 0},
		{listed, 91 * time.Second, false, 0},
		{listed + "/sub", 16 * time.Second, false, 1},
		{listed + "/sub", 91 * time.Second, true, 0},
		{"test/kube/waggle TestPrivilegedDaemonSet/Restart_ClientsUndisturbed", 91 * time.Second, false, 0},
		{"test/node TestPrivilegedModel_RandomSequences/7", 91 * time.Second, false, 0},
		{"test/node TestPrivilegedModel_RandomSequences", 91 * time.Second, true, 0},
	} {
		v := verdict{tier: tier{budget: time.Hour}, slowness: 1, slow: []outcome{{name: module + "/" + c.name, took: c.took}}}
		if warnings := v.check(true); len(warnings) != c.warnings || (len(v.failed) > 0) != c.failed {
			t.Errorf("%s in %v: failed %q, warnings %q", c.name, c.took, v.failed, warnings)
		}
	}
}

// If a parent waits for its subtests and is not in the list, only the parent is reported.
func TestCheck_SlowParentIsNamedOnce(t *testing.T) {
	t.Parallel()
	v := verdict{tier: tier{budget: time.Hour}, slowness: 1, slow: []outcome{
		{name: module + "/bpf TestX/sub", took: 20 * time.Second}, {name: module + "/bpf TestX", took: 21 * time.Second},
		{name: module + "/bpf TestY/sub", took: 20 * time.Second}}}
	if warnings := v.check(true); len(warnings) != 2 || !strings.HasPrefix(warnings[0], module+"/bpf TestX took") ||
		!strings.HasPrefix(warnings[1], module+"/bpf TestY/sub took") {
		t.Errorf("warnings: %q, want one of TestX and one of TestY/sub", warnings)
	}
}

func TestRun_FailureOfACommandFailsItsTier(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := &runner{tree: &tree{root: "."}, out: &locked{out: &out}}
	tiers := []tier{
		{name: "good", budget: time.Hour, calls: func(*tree, bool) []call { return []call{{args: []string{"echo", "well"}}} }},
		{name: "bad", budget: time.Hour, calls: func(*tree, bool) []call {
			return []call{{args: []string{"false"}}, {args: []string{"echo", "still run"}}}
		}},
		{name: "counted", budget: time.Hour, calls: func(*tree, bool) []call {
			return []call{{args: []string{"echo", "kernels: 12 tests passed, 30 tests in 3 suites unchanged, 0 skipped"}}}
		}},
		{name: "tests", budget: time.Hour, calls: func(*tree, bool) []call {
			return []call{{args: []string{"printf", "a_test.go:1: broken\n--- FAIL: TestA (0.1s)\nmore\n"}}}
		}},
	}
	err := r.run(context.Background(), tiers, "7")
	if err == nil {
		t.Error("no error although a command failed")
	}
	for _, want := range []string{"well", "still run", "bad FAILED", "load average", "42 passed, 1 failed, 0 skipped", "\n\nbad: false: exit status 1\n",
		"\n\ntests: a_test.go:1: broken\n  --- FAIL: TestA (0.1s)\n\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed without %q:\n%s", want, out.String())
		}
	}
}

// Each of two tiers of one stage waits for a file that the other creates, and a tier of the next stage finds both files.
func TestRun_TiersOfAStageRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	meet := func(own, other string) func(*tree, bool) []call {
		script := "touch $0/" + own + "; until [ -e $0/" + other + " ]; do sleep 0.01; done; echo met"
		return func(*tree, bool) []call { return []call{{args: []string{"sh", "-c", script, dir}}} }
	}
	var out strings.Builder
	r := &runner{tree: &tree{root: "."}, out: &locked{out: &out}}
	if err := r.run(t.Context(), []tier{
		{name: "last", budget: time.Hour, stage: 3, calls: func(*tree, bool) []call { return []call{{args: []string{"ls", dir}}} }},
		{name: "left", budget: time.Hour, stage: 2, calls: meet("a", "b")},
		{name: "right", budget: time.Hour, stage: 2, calls: meet("b", "a")},
	}, "7"); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"\nleft: met\n", "\nright: met\n", "\n== tier last: \na\nb\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed without %q:\n%s", want, out.String())
		}
	}
}

func TestPrefixed_EachLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if n, err := (&prefixed{"a: ", &out}).Write([]byte("one\ntwo\n")); n != 8 || err != nil {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	if out.String() != "a: one\na: two\n" {
		t.Errorf("printed %q", out.String())
	}
}

// The printed seed is the one that the tests used, and a successful run prints it, too.
func TestRun_PrintsSeedOfTests(t *testing.T) {
	show := func(*tree, bool) []call {
		return []call{{args: []string{"sh", "-c", "echo $0 got ${WAGGLE_SEED:-1}; exit $EXIT"}}}
	}
	for _, c := range []struct{ seed, env, printed string }{{"tree", "", "7"}, {"constant", "", "1"}, {"constant", "5", "5"}, {"no", "", ""}} {
		for _, exit := range []string{"0", "1"} {
			t.Setenv("WAGGLE_SEED", c.env)
			t.Setenv("EXIT", exit)
			var out strings.Builder
			r := &runner{tree: &tree{root: "."}, out: &locked{out: &out}}
			kind := map[string]seeding{"tree": treeSeed, "constant": constantSeed, "no": noSeed}[c.seed]
			err := r.run(context.Background(), []tier{{name: "x", about: "tests", budget: time.Hour, calls: show, seed: kind}}, "7")
			if (err != nil) != (exit == "1") {
				t.Errorf("%s seed, exit %s: %v", c.seed, exit, err)
			}
			start, failure := "== tier x: tests; WAGGLE_SEED="+c.printed+"\n", "seed: WAGGLE_SEED="+c.printed+"\n"
			if c.printed == "" {
				start, failure = "== tier x: tests\n", "x FAILED"
			} else if !strings.Contains(out.String(), "got "+c.printed+"\n") {
				t.Errorf("%s seed, WAGGLE_SEED=%q: the tests did not get %s:\n%s", c.seed, c.env, c.printed, out.String())
			}
			if !strings.HasPrefix(out.String(), start) || strings.Contains(out.String(), failure) != (exit == "1") {
				t.Errorf("%s seed, WAGGLE_SEED=%q, exit %s: printed\n%s\nwant %q, and on a failure %q", c.seed, c.env, exit, out.String(), start, failure)
			}
		}
	}
}

// The option -all also disables the caches of the commands themselves.
func TestRun_AllReachesEveryCommand(t *testing.T) {
	t.Setenv(allEnv, "")
	for _, all := range []bool{false, true} {
		var out strings.Builder
		r := &runner{tree: &tree{root: "."}, all: all, out: &locked{out: &out}}
		r.tier(context.Background(), tier{name: "x", budget: time.Hour, calls: func(*tree, bool) []call {
			return []call{{args: []string{"sh", "-c", "echo all=$WAGGLE_ALL."}}}
		}}, "7")
		if want := map[bool]string{false: "all=.\n", true: "all=1.\n"}[all]; out.String() != want {
			t.Errorf("all %v: printed %q, want %q", all, out.String(), want)
		}
	}
}

// Only the condition at the time of a failure helps to explain it.
func TestRun_ReportsConditionAtFirstFailure(t *testing.T) {
	t.Parallel()
	v := verdict{before: readCPUTimes()}
	found := newResults(&strings.Builder{})
	found.onFailure = v.noteCondition
	found.add(event{Action: "pass", Package: "m/a", Test: "TestA"})
	if v.condition != "" {
		t.Fatal("the condition was recorded without a failure")
	}
	found.add(event{Action: "fail", Package: "m/a", Test: "TestB/sub"})
	first := v.condition
	if !strings.Contains(first, "load average") {
		t.Fatalf("the condition at the first failure is %q", first)
	}
	v.condition = "the first"
	found.add(event{Action: "fail", Package: "m/a", Test: "TestB"})
	if v.condition != "the first" {
		t.Errorf("a later failure replaced the condition by %q", v.condition)
	}
	// If only the lists or the budget fail a tier, the condition is the one at its end.
	r := &runner{tree: &tree{root: "."}, out: &locked{out: &strings.Builder{}}}
	quiet := tier{name: "quiet", budget: time.Hour, calls: func(*tree, bool) []call { return []call{{args: []string{"true"}}} }}
	if v := r.tier(context.Background(), quiet, "7"); !strings.Contains(v.condition, "load average") {
		t.Errorf("the condition at the end of a tier is %q", v.condition)
	}
}

func TestRun_MeasuresCPUTime(t *testing.T) {
	t.Parallel()
	r := &runner{tree: &tree{root: "."}, out: &locked{out: &strings.Builder{}}}
	burn := tier{name: "burn", budget: time.Hour, calls: func(*tree, bool) []call {
		return []call{{args: []string{"sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"}}}
	}}
	if v := r.tier(context.Background(), burn, "7"); len(v.failed) > 0 || v.cpu < 50*time.Millisecond {
		t.Errorf("a loop of the shell used %v, failed %q", v.cpu, v.failed)
	}
	if left, _ := os.ReadDir("/sys/fs/cgroup/unified"); slices.ContainsFunc(left, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "waggle-tier-burn-")
	}) {
		t.Error("the control group is left")
	}
}

// The page for developers names the budget of each tier.
func TestTiers_PageNamesBudgets(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../Documentation/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range tiers {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s \|.*\| %.0f \|$`, tier.name, tier.budget.Seconds()))
		if !row.Match(page) {
			t.Errorf("Documentation/testing.md has no row of the tier %s with its budget of %v", tier.name, tier.budget)
		}
	}
}
