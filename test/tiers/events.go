package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/attributes"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64 // seconds
	Key, Value                                             string  // of an attribute
}

// counts holds the numbers of test results of a tier. A test with subtests counts once.
type counts struct {
	run, cached, skipped, failed int
	packages, cachedPackages     int
}

func (c *counts) add(o counts) {
	c.run += o.run
	c.cached += o.cached
	c.skipped += o.skipped
	c.failed += o.failed
	c.packages += o.packages
	c.cachedPackages += o.cachedPackages
}

// outcome is a test in the report.
type outcome struct {
	name   string // package and test
	output string
	took   time.Duration // without the time in which it was paused for parallel tests or waited for the loads of others
}

// results collects the events of one `go test` run.
type results struct {
	out     io.Writer
	counts  counts
	skips   []outcome
	slow    []outcome // more than slowAfter: tests and subtests, excluding nested subtests
	failing []string  // packages and tests
	output  map[string]*strings.Builder
	passed  map[string]int // tests that passed, by package
	skipped map[string]int // tests that were skipped, by package
	cached  map[string]bool
	running map[string]bool          // top-level tests that are not paused
	waited  map[string]time.Duration // for the loads of other tests, by package and test, subtests included

	onFailure func() // runs when a test or package fails
}

// slowAfter is the duration above which a test must be in the list of expensive tests.
const slowAfter = 15 * time.Second

func newResults(out io.Writer) *results {
	return &results{out: out, output: map[string]*strings.Builder{}, passed: map[string]int{}, skipped: map[string]int{}, cached: map[string]bool{},
		running: map[string]bool{}, waited: map[string]time.Duration{}, onFailure: func() {}}
}

// read processes events until EOF. It prints other lines, such as compiler errors. It periodically prints the running tests.
func (r *results) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	began, shown := time.Now(), time.Now()
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(r.out, lines.Text())
			continue
		}
		r.add(e)
		if now := time.Now(); now.Sub(shown) > showEvery {
			shown = now
			r.progress(now.Sub(began))
		}
	}
	return lines.Err()
}

// progress prints the state of the tests.
func (r *results) progress(after time.Duration) {
	passed := 0
	for _, n := range r.passed {
		passed += n
	}
	running := slices.Sorted(maps.Keys(r.running))
	more := ""
	if len(running) > shownTests {
		running, more = running[:shownTests], ", ..."
	}
	fmt.Fprintf(r.out, "... after %s: %d tests passed; running: %s%s\n", after.Round(time.Second), passed, strings.Join(running, ", "), more)
}

const (
	showEvery  = 30 * time.Second
	shownTests = 4
)

func (r *results) add(e event) {
	if top := e.Test != "" && !strings.Contains(e.Test, "/"); top {
		switch e.Action {
		case "run", "cont":
			r.running[e.Test] = true
		case "pause", "pass", "fail", "skip":
			delete(r.running, e.Test)
		}
	}
	key := e.Package
	if e.Test != "" {
		key += " " + e.Test
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.keep(key, e)
	case "attr":
		if e.Key == attributes.WaitedForLoads {
			r.wait(e)
		}
	case "pass", "fail", "skip":
		if e.Action == "fail" {
			r.onFailure()
		}
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(key, e)
		}
	}
}

// keep stores output until the result decides whether it is printed.
func (r *results) keep(key string, e event) {
	if e.Test == "" {
		r.cached[e.Package] = r.cached[e.Package] || strings.Contains(e.Output, "\t(cached)")
	}
	if strings.HasPrefix(e.Output, "=== ") {
		return
	}
	if r.output[key] == nil {
		r.output[key] = &strings.Builder{}
	}
	r.output[key].WriteString(e.Output)
}

// wait adds the time that a test has waited for the loads of other tests to the test and its parents.
func (r *results) wait(e event) {
	d, err := time.ParseDuration(e.Value)
	if err != nil {
		return // not written by the load generator
	}
	for name, more := e.Test, true; more; {
		r.waited[e.Package+" "+name] += d
		last := strings.LastIndexByte(name, '/')
		if more = last >= 0; more {
			name = name[:last]
		}
	}
}

func (r *results) takeOutput(key string) string {
	defer delete(r.output, key)
	if b := r.output[key]; b != nil {
		return b.String()
	}
	return ""
}

func (r *results) endTest(key string, e event) {
	top := !strings.Contains(e.Test, "/")
	output, took := r.takeOutput(key), time.Duration(e.Elapsed*float64(time.Second))-r.waited[key]
	switch e.Action {
	case "fail":
		fmt.Fprintf(r.out, "%s: %s\n%s", e.Package, e.Test, output)
		r.failing = append(r.failing, key+"\n"+lastLines(output))
	case "skip":
		r.skips = append(r.skips, outcome{name: key, output: output})
	}
	if took > slowAfter && strings.Count(e.Test, "/") <= 1 {
		r.slow = append(r.slow, outcome{name: key, took: took})
	}
	if !top {
		return
	}
	switch e.Action {
	case "pass":
		r.passed[e.Package]++
	case "skip":
		r.skipped[e.Package]++
	case "fail":
		r.counts.failed++
	}
}

// lastLines returns the last lines of the output of a failed test.
func lastLines(output string) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-failureLines+1):], "\n")
}

// endPackage prints a package's last line, as go does; for a failed package, also the output outside tests.
func (r *results) endPackage(e event) {
	output := r.takeOutput(e.Package)
	r.counts.packages++
	r.counts.skipped += r.skipped[e.Package]
	if r.cached[e.Package] {
		r.counts.cachedPackages++
		r.counts.cached += r.passed[e.Package]
	} else {
		r.counts.run += r.passed[e.Package]
	}
	if e.Action == "fail" {
		r.failing = append(r.failing, e.Package)
		r.unfinished(e.Package)
		fmt.Fprint(r.out, output)
		return
	}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") {
			fmt.Fprint(r.out, line)
		}
	}
}

// unfinished prints the output of tests that were running when the package's process ended.
func (r *results) unfinished(pkg string) {
	for key := range r.output {
		if strings.HasPrefix(key, pkg+" ") {
			fmt.Fprintf(r.out, "%s did not end:\n%s", key, r.takeOutput(key))
		}
	}
}
