package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestSecondsOf_CgroupFiles(t *testing.T) {
	t.Parallel()
	const stat = "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n"
	const pressure = "some avg10=0.00 avg60=0.10 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	for name, c := range map[string]struct {
		text   string
		before []string
		want   float64
	}{
		"CPU time":      {stat, []string{"usage_usec "}, 1.5},
		"system":        {stat, []string{"system_usec "}, 0.5},
		"pressure":      {pressure, []string{"some ", "total="}, 2.5},
		"full pressure": {pressure, []string{"full ", "total="}, 7e-6},
		"no such line":  {stat, []string{"nice_usec "}, 0},
		"no file":       {"", []string{"usage_usec "}, 0},
	} {
		if got := secondsOf(c.text, c.before...); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestResultOf_VerboseOutput(t *testing.T) {
	t.Parallel()
	failed := errors.New("exit status 1")
	for name, c := range map[string]struct {
		output string
		err    error
		want   string
	}{
		"passed":              {"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n", nil, "pass"},
		"skipped":             {"=== RUN   TestA\n    a_test.go:3: needs root\n--- SKIP: TestA (0.00s)\nPASS\n", nil, "skip"},
		"a subtest skipped":   {"    --- SKIP: TestA/one (0.00s)\n--- PASS: TestA (0.00s)\nPASS\n", nil, "pass"},
		"failed":              {"--- FAIL: TestA (0.00s)\nFAIL\n", failed, "fail"},
		"passed, then leaked": {"--- PASS: TestA (0.00s)\ngoleak: found unexpected goroutines\n", failed, "fail"},
		"killed":              {"=== RUN   TestA\n", failed, "fail"},
		"another test":        {"--- PASS: TestAB (0.00s)\n", nil, "fail"},
	} {
		if got := resultOf("TestA", c.output, c.err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestRank_ByCost(t *testing.T) {
	t.Parallel()
	all := func() (costs []cost) {
		for _, c := range []cost{{Test: "TestWaits", Wall: 20, CPU: 1}, {Test: "TestComputes", Wall: 6, CPU: 11}, {Test: "TestStarved", Wall: 20.5, CPU: 2, Starved: 17},
			{Test: "TestSmall", Wall: 1}, {Test: "TestBoth", Wall: 60, CPU: 12}} {
			costs = append(costs, c.less(cost{}))
		}
		return costs
	}
	for order, want := range map[string]string{
		"cpu":  "TestBoth[cpu idle] TestComputes[cpu] TestStarved[] TestWaits[idle] TestSmall[]",
		"idle": "TestBoth[cpu idle] TestWaits[idle] TestStarved[] TestSmall[] TestComputes[cpu]",
		"wall": "TestBoth[cpu idle] TestStarved[] TestWaits[idle] TestComputes[cpu] TestSmall[]",
	} {
		var got []string
		for _, c := range rank(all(), order, limits{CPU: 10, Idle: 15}) {
			got = append(got, c.Test+"["+strings.Join(c.Over, " ")+"]")
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("by %s: %s, want %s", order, text, want)
		}
	}
}

func TestUnlisted_TestsOverALimit(t *testing.T) {
	t.Parallel()
	costs := []cost{{Package: module + "/bpf", Test: "TestListed", Over: []string{"cpu"}}, {Package: module + "/bpf", Test: "TestSmall"}}
	list := []string{"bpf TestListed", "bpf TestOther"}
	if err := unlisted(costs, list); err != nil {
		t.Errorf("all are listed or small, and yet: %v", err)
	}
	costs = append(costs, cost{Package: module + "/cni", Test: "TestListed", Over: []string{"idle"}})
	if err := unlisted(costs, list); err == nil || !strings.HasSuffix(err.Error(), ": cni TestListed") {
		t.Errorf("got %v, want an error that names cni TestListed", err)
	}
}

func TestCost_LessTestMain(t *testing.T) {
	t.Parallel()
	base := cost{Wall: 2, CPU: 3}
	c := cost{Package: "p", Test: "TestA", Result: "pass", Wall: 5, CPU: 4}.less(base)
	text, err := json.Marshal(c)
	if want := `{"package":"p","test":"TestA","result":"pass","wall":3,"cpu":1,"starved":0,"idle":2}`; err != nil || string(text) != want {
		t.Errorf("less its TestMain a test costs %s, %v, want %s", text, err, want)
	}
	if c := (cost{Wall: 1}).less(base); c.Wall != 0 || c.CPU != 0 || c.Idle != 0 {
		t.Errorf("a test that is cheaper than its TestMain costs %+v", c)
	}
}
