package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/attributes"
)

// stream returns output of `go test -json`.
func stream(t *testing.T, events ...event) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

func TestResults_CountTopLevelTests(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newResults(&out)
	err := r.read(strings.NewReader(stream(t,
		event{Action: "pass", Package: "m/a", Test: "TestOne/sub/deep", Elapsed: 17},
		event{Action: "pass", Package: "m/a", Test: "TestOne/sub", Elapsed: 17},
		event{Action: "pass", Package: "m/a", Test: "TestOne", Elapsed: 16},
		event{Action: "output", Package: "m/a", Test: "TestTwo", Output: "    a_test.go:3: needs a moon\n"},
		event{Action: "skip", Package: "m/a", Test: "TestTwo"},
		event{Action: "output", Package: "m/a", Output: "ok  \tm/a\t1.000s\n"},
		event{Action: "pass", Package: "m/a"},
		event{Action: "pass", Package: "m/b", Test: "TestThree"},
		event{Action: "output", Package: "m/b", Output: "ok  \tm/b\t(cached)\n"},
		event{Action: "pass", Package: "m/b"},
	)))
	if err != nil {
		t.Fatal(err)
	}
	if want := (counts{run: 1, cached: 1, skipped: 1, packages: 2, cachedPackages: 1}); r.counts != want {
		t.Errorf("counted %+v, want %+v", r.counts, want)
	}
	if len(r.skips) != 1 || r.skips[0].name != "m/a TestTwo" || !strings.Contains(r.skips[0].output, "needs a moon") {
		t.Errorf("skips: %+v", r.skips)
	}
	if len(r.slow) != 2 || r.slow[0].name != "m/a TestOne/sub" || r.slow[1].name != "m/a TestOne" {
		t.Errorf("slow tests: %+v", r.slow)
	}
	if want := "ok  \tm/a\t1.000s\nok  \tm/b\t(cached)\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// The time that a test waits for the loads of other tests is not part of its duration or of the duration of its parents.
func TestResults_WaitingForLoadsIsNotSlow(t *testing.T) {
	t.Parallel()
	attr := func(test, key, value string) event {
		return event{Action: "attr", Package: "m/a", Test: test, Key: key, Value: value}
	}
	r := newResults(io.Discard)
	if err := r.read(strings.NewReader(stream(t,
		attr("TestOne/sub", attributes.WaitedForLoads, "1m0s"),
		attr("TestOne/sub", attributes.WaitedForLoads, "10s"),
		attr("TestTwo", "another", "1m0s"),
		attr("TestTwo", attributes.WaitedForLoads, "soon"),
		event{Action: "pass", Package: "m/a", Test: "TestOne/sub", Elapsed: 84},
		event{Action: "pass", Package: "m/a", Test: "TestOne", Elapsed: 86},
		event{Action: "pass", Package: "m/a", Test: "TestTwo", Elapsed: 30},
	))); err != nil {
		t.Fatal(err)
	}
	if len(r.slow) != 2 || r.slow[0].name != "m/a TestOne" || r.slow[0].took != 16*time.Second || r.slow[1].took != 30*time.Second {
		t.Errorf("slow tests: %+v", r.slow)
	}
}

func TestResults_FailuresArePrintedWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		events  []event
		printed []string
		failing string
	}{
		{"a test", []event{
			{Action: "output", Package: "m/a", Test: "TestOne", Output: "    a_test.go:3: wrong\n"},
			{Action: "fail", Package: "m/a", Test: "TestOne"}, {Action: "fail", Package: "m/a"},
		}, []string{"m/a: TestOne", "a_test.go:3: wrong"}, "[m/a TestOne\n    a_test.go:3: wrong m/a]"},
		{"a package that panics while a test runs", []event{
			{Action: "output", Package: "m/a", Test: "TestOne", Output: "goroutine 7\n"},
			{Action: "output", Package: "m/a", Output: "FAIL\tm/a\t0.1s\n"}, {Action: "fail", Package: "m/a"},
		}, []string{"m/a TestOne did not end", "goroutine 7", "FAIL\tm/a"}, "[m/a]"},
		{"a package that does not compile", []event{
			{Action: "build-output", ImportPath: "m/a", Output: "a.go:1: syntax error\n"},
			{Action: "fail", Package: "m/a", FailedBuild: "m/a"},
		}, []string{"a.go:1: syntax error"}, "[m/a]"},
	} {
		var out strings.Builder
		r := newResults(&out)
		if err := r.read(strings.NewReader(stream(t, c.events...))); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.printed {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: printed %q, want %q in it", c.name, out.String(), want)
			}
		}
		if got := fmt.Sprint(r.failing); got != c.failing {
			t.Errorf("%s: failing is %s, want %s", c.name, got, c.failing)
		}
	}
}

func TestResults_OtherLinesArePrinted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := newResults(&out).read(strings.NewReader("go: no such tool\n")); err != nil || out.String() != "go: no such tool\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestResults_ProgressNamesRunningTests(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newResults(&out)
	for _, e := range []event{
		{Action: "run", Test: "TestA"}, {Action: "run", Test: "TestB"}, {Action: "pause", Test: "TestB"},
		{Action: "run", Test: "TestC"}, {Action: "run", Test: "TestC/sub"}, {Action: "pass", Test: "TestC"},
	} {
		r.add(e)
	}
	r.progress(90 * time.Second)
	if want := "... after 1m30s: 1 tests passed; running: TestA\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
