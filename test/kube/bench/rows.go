package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Exit codes, as of test/bench.
const (
	failed       = 1 // the measurement failed
	budgetMissed = 2 // with -strict
)

// Units of values. The unit of a ratio is empty.
const (
	milliseconds  = "ms"
	megabytes     = "MB"
	percentOfCore = "% of a core"
	eventRate     = "events/s"
)

// limit is the budget of a figure, in the unit of the figure. The zero value is no budget.
type limit struct {
	bound float64
	kind  kind
}

type kind uint8

const (
	none kind = iota
	most
	least
)

// atMost returns a budget that a figure must not exceed, atLeast one that a figure must reach.
func atMost(bound float64) limit  { return limit{bound, most} }
func atLeast(bound float64) limit { return limit{bound, least} }

// row is one measured figure.
type row struct {
	what    string
	shown   string  // text in the table, often with a second figure in brackets
	control string  // text of the same figure in the empty cluster; "" without it
	value   float64 // the figure that the budget limits, in unit: the ratio if there is a control; NaN without a measurement
	unit    string
	budget  limit
}

// missed reports whether the value is outside the budget.
func (r row) missed() bool {
	switch r.budget.kind {
	case most:
		return !(r.value <= r.budget.bound) // NaN misses the budget as well
	case least:
		return !(r.value >= r.budget.bound)
	}
	return false
}

// limits returns the budget as text, "" for none.
func (r row) limits() string {
	text := fmt.Sprint(r.budget.bound)
	if r.unit != "" {
		text += " " + r.unit
	}
	switch r.budget.kind {
	case most:
		return "<= " + text
	case least:
		return ">= " + text
	}
	return ""
}

// ratio returns the ratio to the control as text, "-" without a control.
func (r row) ratio() string {
	if r.control == "" {
		return "-"
	}
	return fmt.Sprintf("%.3f", r.value)
}

// String returns the row as a line of progress and of the list of missed budgets.
func (r row) String() string {
	text := r.what + ": " + r.shown
	if r.control != "" {
		text += ", " + r.ratio() + " of " + r.control
	}
	if r.budget.kind != none {
		text += ", budget " + r.limits()
	}
	return text
}

// sheet collects rows in the order of their measurement. Its table has the columns of test/bench, whose package figures belongs to another module.
type sheet struct {
	log  io.Writer // for progress and errors
	rows []row
}

// add adds a figure and logs it: a run can take hours.
func (s *sheet) add(r row) {
	s.rows = append(s.rows, r)
	fmt.Fprintln(s.log, r)
}

func (s *sheet) addTime(what string, took time.Duration, budget limit) {
	s.add(row{what: what, shown: show(took), value: inMilliseconds(took), unit: milliseconds, budget: budget})
}

func (s *sheet) addMemory(what string, memory float64, budget limit) {
	s.add(row{what: what, shown: fmt.Sprintf("%.1f MB", memory), value: memory, unit: megabytes, budget: budget})
}

func (s *sheet) addCPU(what string, percent float64, budget limit) {
	s.add(row{what: what, shown: fmt.Sprintf("%.2f %%", percent), value: percent, unit: percentOfCore, budget: budget})
}

// addMedians adds a median and its ratio to the median of the control.
func (s *sheet) addMedians(what string, took, control times, budget limit) {
	s.add(row{what: fmt.Sprintf("%s, p50 of %d (p99)", what, len(took)), shown: took.both(50, 99), control: control.text(50),
		value: took.value(50) / control.value(50), budget: budget})
}

// addTails adds a 99th percentile of times.
func (s *sheet) addTails(what string, took times, budget limit) {
	s.add(row{what: fmt.Sprintf("%s, p99 of %d (p50)", what, len(took)), shown: took.both(99, 50), value: took.value(99), unit: milliseconds, budget: budget})
}

// missed returns the rows that are outside their budgets.
func (s *sheet) missed() (missed []row) {
	for _, r := range s.rows {
		if r.missed() {
			missed = append(missed, r)
		}
	}
	return missed
}

// write prints all rows, then the rows that miss their budgets again.
func (s *sheet) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tWAGGLE\tCONTROL\tRATIO\tBUDGET\t")
	budgets := 0
	for _, r := range s.rows {
		control, mark := "-", ""
		if r.control != "" {
			control = r.control
		}
		if r.budget.kind != none {
			budgets++
		}
		if r.missed() {
			mark = " MISSED"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t\n", r.what, r.shown, control, r.ratio(), r.limits()+mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	missed := s.missed()
	_, err := fmt.Fprintf(w, "\n%d of %d budgets missed\n", len(missed), budgets)
	for _, r := range missed {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s\n", r)
		}
	}
	return err
}

// finish prints the rows, also those of a measurement that failed with err, and returns the exit code.
func (s *sheet) finish(out io.Writer, err error, strict bool) int {
	if err := errors.Join(err, s.write(out)); err != nil {
		fmt.Fprintln(s.log, "bench:", err)
		return failed
	}
	if strict && len(s.missed()) > 0 {
		return budgetMissed
	}
	return 0
}

func inMilliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

func show(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.2f ms", inMilliseconds(d))
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
