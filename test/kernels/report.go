package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/waggle-net/waggle/test/kernels/plan"
)

// result is the result of one suite on one kernel.
type result struct {
	pkg        string
	tests      int               // finished tests; a test with subtests counts once
	passed     int               // of these
	ran        map[string]bool   // tests that passed, by name
	skipped    map[string]string // output of skipped tests, by name
	attributes map[string]string // set by tests, by key
	output     map[string]string // output of running and failed tests, by name; "" for output outside tests
	ended      bool
	failed     bool
	unchanged  *stamp // set for a suite that did not run because it has passed
	faults     []string
	seconds    float64 // of the machine's clock
	cpu        float64 // seconds of this machine's CPUs
}

// report collects the results of one kernel's suites and prints each as the suite ends.
type report struct {
	series  string
	out     io.Writer
	results []*result      // in the order of the table
	cpu     func() float64 // CPU seconds of the emulator so far; nil counts none
	before  float64        // value of cpu when the first suite began or the last one ended
	began   bool           // an event of a suite was read
}

// printing serializes the output of several machines.
var printing sync.Mutex

func newReport(series string, pkgs []string, out io.Writer) *report {
	r := &report{series: series, out: out}
	for _, pkg := range pkgs {
		r.results = append(r.results, &result{pkg: pkg, ran: map[string]bool{}, skipped: map[string]string{}, attributes: map[string]string{}, output: map[string]string{}})
	}
	return r
}

// printLine prints one line, or several lines of which the first names the subject of the others.
func (r *report) printLine(what, format string, args ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Fprintf(r.out, "%-5s %-5s %s\n", r.series, what, fmt.Sprintf(format, args...))
}

// of returns the result of a package, or nil if the package is not part of the run.
func (r *report) of(pkg string) *result {
	if i := slices.IndexFunc(r.results, func(s *result) bool { return s.pkg == pkg }); i >= 0 {
		return r.results[i]
	}
	return nil
}

// unchanged sets the result of a suite from its stamp.
func (r *report) unchanged(pkg string, s *stamp) {
	found := r.of(pkg)
	found.unchanged, found.ended, found.passed, found.attributes = s, true, s.Tests, s.Attributes
	maps.Copy(found.skipped, s.Skipped)
	found.checkSkips(r.series, allowedSkips)
	if len(found.faults) > 0 {
		r.fail(found)
		return
	}
	r.printLine("same", "%-24s %4d tests as passed on %s", pkg, s.Tests, s.Date.Format("2006-01-02"))
}

// read processes events until EOF.
func (r *report) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e plan.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read the events of the tests: %w: %q", err, lines.Text())
		}
		if r.cpu != nil && !r.began { // the CPU time of the boot belongs to no suite
			r.before = r.cpu()
		}
		r.began = true
		if s := r.of(e.Package); s == nil {
			return fmt.Errorf("read the events of the tests: no suite is called %q", e.Package)
		} else if s.add(e) {
			r.end(s, e)
		}
	}
	return lines.Err()
}

// add processes an event and reports whether it ends the suite.
func (s *result) add(e plan.Event) (ended bool) {
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			s.output[e.Test] += e.Output
		}
	case "attr":
		s.attributes[e.Key] = e.Value
	case "pass", "fail", "skip":
		if e.Test != "" {
			s.test(e)
		}
	case plan.Passed, plan.Failed:
		return true
	}
	return false
}

func (s *result) test(e plan.Event) {
	top := !strings.Contains(e.Test, "/")
	if top {
		s.tests++
	}
	switch e.Action {
	case "pass":
		if top {
			s.passed++
		}
		s.ran[e.Test] = true
		delete(s.output, e.Test)
	case "skip":
		s.skipped[e.Test] = strings.TrimSpace(s.output[e.Test]) // the reason
		delete(s.output, e.Test)
	}
}

// end evaluates a finished suite and prints its result.
func (r *report) end(s *result, e plan.Event) {
	s.ended, s.seconds = true, e.Elapsed
	if r.cpu != nil {
		now := r.cpu()
		s.cpu, r.before = now-r.before, now
	}
	switch {
	case e.Action == plan.Failed:
		s.faults = append(s.faults, "tests failed\n"+s.printed())
	case s.passed+len(s.skipped) == 0:
		s.faults = append(s.faults, "no test was run")
	}
	s.checkSkips(r.series, allowedSkips)
	if len(s.faults) > 0 {
		r.fail(s)
		return
	}
	r.printLine("ok", "%-24s %4d tests %6.1f s, %6.1f CPU s", s.pkg, s.tests, s.seconds, s.cpu)
}

func (r *report) fail(s *result) {
	s.failed = true
	r.printLine("FAIL", "%-24s %4d tests %6.1f s, %6.1f CPU s: %s", s.pkg, s.tests, s.seconds, s.cpu, strings.Join(s.faults, "\n"))
}

// checkSkips compares the skipped tests with the table of allowed skips. A row whose test runs is an error, like a skip without a row: it would hide the next
// skip.
func (s *result) checkSkips(series string, allowed []allowedSkip) {
	for _, test := range slices.Sorted(maps.Keys(s.skipped)) {
		if !slices.ContainsFunc(allowed, func(a allowedSkip) bool { return a.pkg == s.pkg && on(a.kernels, series) && a.test == test }) {
			s.faults = append(s.faults, fmt.Sprintf("%s was skipped and is not in the table of allowed skips: %s", test, s.skipped[test]))
		}
	}
	for _, a := range allowed {
		if a.pkg == s.pkg && on(a.kernels, series) && s.ran[a.test] {
			s.faults = append(s.faults, fmt.Sprintf("%s is in the table of allowed skips, and ran: remove the row", a.test))
		}
	}
}

// printed returns the output of the failed and unfinished tests.
func (s *result) printed() string {
	var b strings.Builder
	for _, test := range slices.Sorted(maps.Keys(s.output)) {
		b.WriteString(s.output[test])
	}
	return strings.TrimRight(b.String(), "\n")
}

// summary prints results after the machine is off: attributes of tests, skipped tests, totals.
func (r *report) summary(cpu float64) {
	for _, s := range r.results {
		for _, key := range slices.Sorted(maps.Keys(s.attributes)) {
			r.printLine("", "%s %s: %s", s.pkg, key, s.attributes[key])
		}
	}
	for _, s := range r.results {
		for _, test := range slices.Sorted(maps.Keys(s.skipped)) {
			r.printLine("skip", "%s %s: %s", s.pkg, test, s.skipped[test])
		}
	}
	t := r.totals()
	r.printLine("done", "%d tests passed, %d tests in %d suites unchanged, %d skipped, %d suites failed, %d did not end; %.0f s and %.0f CPU s", t.passed,
		t.standing, t.unchanged, t.skipped, t.failed, t.unfinished, t.seconds, cpu)
}

// totals holds sums over suites. Tests of unchanged suites do not count as passed.
type totals struct {
	passed, skipped               int // tests
	standing                      int // tests of unchanged suites, which passed in a previous run
	unchanged, failed, unfinished int // suites
	seconds                       float64
}

// skippedTests counts the skipped tests, without subtests.
func (s *result) skippedTests() (n int) {
	for test := range s.skipped {
		if !strings.Contains(test, "/") {
			n++
		}
	}
	return n
}

func (r *report) totals() (t totals) {
	for _, s := range r.results {
		t.skipped += s.skippedTests()
		t.seconds += s.seconds
		switch {
		case s.failed:
			t.failed++
		case !s.ended:
			t.unfinished++
		case s.unchanged != nil:
			t.unchanged++
			t.standing += s.passed
			continue
		}
		t.passed += s.passed
	}
	return t
}

// err returns the errors of the run after the machine is off.
func (r *report) err() error {
	var errs []error
	var failed, unfinished []string
	for _, s := range r.results {
		if s.failed {
			failed = append(failed, s.pkg)
		}
		if !s.ended {
			unfinished = append(unfinished, s.pkg)
		}
	}
	if len(failed) > 0 {
		errs = append(errs, fmt.Errorf("kernel %s: failed: %s", r.series, strings.Join(failed, ", ")))
	}
	if len(unfinished) > 0 { // the first one was running; the others did not start
		errs = append(errs, fmt.Errorf("kernel %s: the machine was off before the tests of %s ended; so far:\n%s", r.series,
			strings.Join(unfinished, ", "), r.of(unfinished[0]).printed()))
	}
	return errors.Join(errs...)
}
