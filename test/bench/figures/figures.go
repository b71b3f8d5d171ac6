// Package figures holds the results of a benchmark, each with its control and its budget, and prints all of them as a table or as JSON.
package figures

import (
	"fmt"
	"strconv"
	"time"
)

// Units of values. Any other word is the name of a counted thing.
const (
	Second  = "s"
	NanoSec = "ns"
	Ratio   = "x" // relative to the control
)

// Value is one number with its unit.
type Value struct {
	Number float64
	Unit   string
}

// Time returns a duration as a value.
func Time(d time.Duration) Value { return Value{d.Seconds(), Second} }

// Of returns the ratio of a figure to its control, 0 when the control is 0.
func Of(figure, control float64) Value {
	if control == 0 {
		return Value{0, Ratio}
	}
	return Value{figure / control, Ratio}
}

// String returns the value in the format of budgets: "600 ms", "0.98", "55 MB".
func (v Value) String() string {
	number := strconv.FormatFloat(v.Number, 'g', 6, 64)
	switch v.Unit {
	case Second:
		return shortTime(v.Number)
	case Ratio:
		return number
	}
	return number + " " + v.Unit
}

func shortTime(seconds float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}} {
		if seconds >= u.size {
			return fmt.Sprintf("%.6g %s", seconds/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.6g ns", seconds*1e9)
}

// Limit is the budget of a figure. The zero value is no budget.
type Limit struct {
	bound Value
	kind  kind
}

type kind uint8

const (
	none kind = iota
	most
	least
)

// AtMost returns a budget that a figure must not exceed, AtLeast one that a figure must reach.
func AtMost(bound Value) Limit  { return Limit{bound, most} }
func AtLeast(bound Value) Limit { return Limit{bound, least} }

// Within returns a budget for a duration.
func Within(d time.Duration) Limit { return AtMost(Time(d)) }

// String returns "" for no budget.
func (l Limit) String() string {
	switch l.kind {
	case most:
		return "<= " + l.bound.String()
	case least:
		return ">= " + l.bound.String()
	}
	return ""
}

// missed reports whether a value is outside the budget. A value of another unit is a programming error.
func (l Limit) missed(v Value) bool {
	if l.kind != none && v.Unit != l.bound.Unit {
		panic(fmt.Errorf("a figure in %q is compared with a budget in %q", v.Unit, l.bound.Unit))
	}
	switch l.kind {
	case most:
		return !(v.Number <= l.bound.Number) // NaN misses the budget as well
	case least:
		return !(v.Number >= l.bound.Number)
	}
	return false
}
