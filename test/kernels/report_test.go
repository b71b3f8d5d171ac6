package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// sampleOutput is the output of a machine in which one test passes, one fails, one is skipped and one sets an attribute.
const sampleOutput = `{"Action":"start","Package":"bpf"}
{"Action":"run","Package":"bpf","Test":"TestA"}
{"Action":"output","Package":"bpf","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"bpf","Test":"TestA","Output":"    a_test.go:1: quiet\n"}
{"Action":"attr","Package":"bpf","Test":"TestA","Key":"verifier:a","Value":"17"}
{"Action":"pass","Package":"bpf","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"bpf","Test":"TestB/passes","Elapsed":0.1}
{"Action":"skip","Package":"bpf","Test":"TestB/skipped","Elapsed":0.1}
{"Action":"output","Package":"bpf","Test":"TestB","Output":"    b_test.go:1: broken\n"}
{"Action":"fail","Package":"bpf","Test":"TestB","Elapsed":0.1}
{"Action":"output","Package":"bpf","Test":"TestC","Output":"    c_test.go:1: needs 6.6\n"}
{"Action":"skip","Package":"bpf","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"bpf","Elapsed":1.5}
{"Action":"suite failed","Package":"bpf","Elapsed":1.5}
`

func TestReport_NamesFailedSkippedAndUnfinishedTests(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newReport("6.1", []string{"bpf", "cni", "pkg/datapath/tc"}, &out)
	cpu := 0.0
	r.cpu = func() float64 { cpu += 2.5; return cpu } // 2.5 s when the suite begins, 5 s when it ends
	more := `{"Action":"output","Package":"cni","Test":"TestD","Output":"    d_test.go:1: half-way\n"}`
	if err := r.read(strings.NewReader(sampleOutput + more + "\n")); err != nil {
		t.Fatal(err)
	}
	r.summary(3)
	for _, want := range []string{"6.1   FAIL  bpf", "3 tests    1.5 s,    2.5 CPU s", "    b_test.go:1: broken\n", "bpf verifier:a: 17", "skip  bpf TestC: c_test.go:1: needs 6.6\n",
		"1 tests passed, 0 tests in 0 suites unchanged, 1 skipped, 1 suites failed, 2 did not end; 2 s and 3 CPU s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "quiet") {
		t.Errorf("a test that passed is quoted:\n%s", &out)
	}
	err := r.err()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"failed: bpf", "before the tests of cni, pkg/datapath/tc ended", "half-way"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestReport_OKOnlyIfTestsRan(t *testing.T) {
	t.Parallel()
	const pass, end = `{"Action":"pass","Package":"bpf","Test":"TestA"}` + "\n", `{"Action":"suite passed","Package":"bpf"}`
	for output, ok := range map[string]bool{
		pass + end: true,
		end:        false, // the regular expression matches nothing
		pass:       false, // the machine was off before the end
		"":         false,
		pass + `{"Action":"suite failed","Package":"bpf"}`:                            false, // the process failed after its tests
		pass + `{"Action":"skip","Package":"bpf","Test":"TestB"}` + "\n" + end:        false, // a skip without a row
		`{"Action":"skip","Package":"bpf","Test":"TestPrivilegedX"}` + "\n" + end:     false,
		pass + `{"Action":"fail","Package":"bpf","Test":"TestB"}` + "\n":              false,
		pass + end + "\n" + `{"Action":"pass","Package":"bpf","Test":"TestB"}` + "\n": true,
	} {
		r := newReport("6.1", []string{"bpf"}, io.Discard)
		if err := r.read(strings.NewReader(output)); err != nil {
			t.Fatal(err)
		}
		if err := r.err(); (err == nil) != ok {
			t.Errorf("%q: %v", output, err)
		}
	}
}

func TestReport_NoiseIsAnError(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"Kernel panic", `{"Action":"pass","Package":"another"}`} {
		if err := newReport("6.1", []string{"bpf"}, io.Discard).read(strings.NewReader(output)); err == nil || !strings.Contains(err.Error(), "anic") && !strings.Contains(err.Error(), "another") {
			t.Errorf("%s: got %v", output, err)
		}
	}
}

func TestCheckSkips_MatchTableExactly(t *testing.T) {
	t.Parallel()
	allowed := []allowedSkip{{"bpf", oldest, "TestC", "needs 6.6"}}
	for name, c := range map[string]struct {
		skipped map[string]string
		ran     map[string]bool
		series  string
		fault   string // "" for none
	}{
		"allowed":               {map[string]string{"TestC": "why"}, nil, oldest, ""},
		"another kernel":        {map[string]string{"TestC": "why"}, nil, newer, "TestC was skipped"},
		"another test":          {map[string]string{"TestD": "why"}, nil, oldest, "TestD was skipped"},
		"it ran":                {nil, map[string]bool{"TestC": true}, oldest, "TestC is in the table of allowed skips, and ran"},
		"it ran in another run": {nil, map[string]bool{"TestC": true}, newer, ""},
		"it was not started":    {nil, nil, oldest, ""},
	} {
		s := &result{pkg: "bpf", skipped: c.skipped, ran: c.ran}
		s.checkSkips(c.series, allowed)
		if got := strings.Join(s.faults, "; "); c.fault == "" && got != "" || !strings.Contains(got, c.fault) {
			t.Errorf("%s: got %q, want %q", name, got, c.fault)
		}
	}
}

// The attributes and skips of a suite that did not run come from its stamp; its tests do not count as passed.
func TestReport_UnchangedSuite(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newReport("6.1", []string{"bpf", "cni"}, &out)
	r.unchanged("bpf", &stamp{Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Tests: 7, Attributes: map[string]string{"verifier:a": "17"}})
	if err := r.read(strings.NewReader(`{"Action":"pass","Package":"cni","Test":"TestA"}` + "\n" + `{"Action":"suite passed","Package":"cni"}`)); err != nil {
		t.Fatal(err)
	}
	r.summary(0)
	for _, want := range []string{"6.1   same  bpf", "7 tests as passed on 2026-01-02", "bpf verifier:a: 17", "1 tests passed, 7 tests in 1 suites unchanged, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
	if err := r.err(); err != nil {
		t.Error(err)
	}
	// The removal of a row from the table of allowed skips also applies to results of previous runs.
	r = newReport("6.1", []string{"bpf"}, io.Discard)
	r.unchanged("bpf", &stamp{Skipped: map[string]string{"TestGone": "why"}})
	if r.err() == nil {
		t.Error("a skip that is not allowed any more passes")
	}
}
