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
)

// event is one line of `go test -json`, or tells how a whole package ended.
type event struct {
	Action, Package          string
	Test, Output, Key, Value string  `json:",omitempty"`
	Elapsed                  float64 // seconds
}

// Actions of the events that end a package. The "fail" of `go test -json` does not say whether it means the package or a
// test in which it panicked.
const (
	passed = "package passed"
	failed = "package failed"
)

// report collects what one machine's tests say, and tells of each suite as it ends.
type report struct {
	series     string
	out        io.Writer
	unfinished []string          // packages that have not ended
	failed     []string          // packages
	passed     int               // tests
	skipped    map[string]string // the output of tests, by package and name
	attributes map[string]string // that tests gave to themselves, by key
	output     map[string]string // of tests that run or failed, by package and name; by package alone what no test said
	counts     map[string]int    // tests of a package that ended
}

// printing keeps the lines of several machines apart.
var printing sync.Mutex

func newReport(series string, suites []suite, out io.Writer) *report {
	r := &report{series: series, out: out, skipped: make(map[string]string), attributes: make(map[string]string),
		output: make(map[string]string), counts: make(map[string]int)}
	for _, s := range suites {
		r.unfinished = append(r.unfinished, s.Package)
	}
	return r
}

// say prints one line, or several of which the first says what the others are about.
func (r *report) say(what, format string, args ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Fprintf(r.out, "%-5s %-5s %s\n", r.series, what, fmt.Sprintf(format, args...))
}

// read takes events until there are no more.
func (r *report) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read what the tests say: %w: %q", err, lines.Text())
		}
		r.add(e)
	}
	return lines.Err()
}

func (r *report) add(e event) {
	key := e.Package
	if e.Test != "" {
		key += " " + e.Test
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			r.output[key] += e.Output
		}
	case "attr":
		r.attributes[e.Key] = e.Value
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.test(e, key)
		}
	case passed, failed:
		r.suite(e)
	}
}

func (r *report) test(e event, key string) {
	r.counts[e.Package]++
	switch e.Action {
	case "pass":
		r.passed++
		delete(r.output, key)
	case "skip":
		r.skipped[key] = r.output[key] // the reason
		delete(r.output, key)
	}
}

// suite tells how a package's tests ended.
func (r *report) suite(e event) {
	r.unfinished = slices.DeleteFunc(r.unfinished, func(p string) bool { return p == e.Package })
	if e.Action == passed && r.counts[e.Package] > 0 {
		r.say("ok", "%-24s %4d tests %7.1f s", e.Package, r.counts[e.Package], e.Elapsed)
		return
	}
	r.failed = append(r.failed, e.Package)
	if e.Action == passed {
		r.say("FAIL", "%-24s no test was run", e.Package)
		return
	}
	r.say("FAIL", "%-24s %4d tests %7.1f s\n%s", e.Package, r.counts[e.Package], e.Elapsed, r.of(e.Package))
}

// of is the output of a package's tests that failed or did not end.
func (r *report) of(pkg string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		if key == pkg || strings.HasPrefix(key, pkg+" ") {
			b.WriteString(r.output[key])
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// summary prints what is known when the machine is off.
func (r *report) summary() {
	for _, key := range slices.Sorted(maps.Keys(r.attributes)) {
		r.say("", "%s: %s", key, r.attributes[key])
	}
	for _, key := range slices.Sorted(maps.Keys(r.skipped)) {
		r.say("skip", "%s\n%s", key, strings.TrimRight(r.skipped[key], "\n"))
	}
	r.say("done", "%d tests passed, %d were skipped, %d packages failed, %d did not end", r.passed, len(r.skipped), len(r.failed), len(r.unfinished))
}

// err says what is wrong, once the machine is off.
func (r *report) err() error {
	var errs []error
	if len(r.failed) > 0 {
		errs = append(errs, fmt.Errorf("kernel %s: tests failed in %s", r.series, strings.Join(r.failed, ", ")))
	}
	for i, p := range r.unfinished {
		if i == 0 { // the one that ran; the others never began
			errs = append(errs, fmt.Errorf("kernel %s: the machine was off before the tests of %s ended; so far:\n%s", r.series,
				strings.Join(r.unfinished, ", "), r.of(p)))
		}
	}
	return errors.Join(errs...)
}
