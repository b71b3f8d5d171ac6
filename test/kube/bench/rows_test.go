package main

import (
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRow_Missed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row    row
		limits string
		missed bool
	}{
		"no budget":         {row{value: 5, unit: megabytes}, "", false},
		"at the bound":      {row{value: 500, unit: milliseconds, budget: atMost(500)}, "<= 500 ms", false},
		"over the bound":    {row{value: 500.01, unit: milliseconds, budget: atMost(500)}, "<= 500 ms", true},
		"a ratio":           {row{value: 1.19, budget: atMost(1.2)}, "<= 1.2", false},
		"a ratio, over":     {row{value: 1.21, budget: atMost(1.2)}, "<= 1.2", true},
		"no measurement":    {row{value: math.NaN(), unit: milliseconds, budget: atMost(40)}, "<= 40 ms", true},
		"reached":           {row{value: 95, unit: eventRate, budget: atLeast(95)}, ">= 95 events/s", false},
		"not reached":       {row{value: 94.9, unit: eventRate, budget: atLeast(95)}, ">= 95 events/s", true},
		"no rate":           {row{value: math.NaN(), unit: eventRate, budget: atLeast(95)}, ">= 95 events/s", true},
		"a control of zero": {row{value: math.Inf(1), budget: atMost(1.2)}, "<= 1.2", true},
	} {
		if missed, limits := c.row.missed(), c.row.limits(); missed != c.missed || limits != c.limits {
			t.Errorf("%s: missed %t, budget %q; want %t, %q", name, missed, limits, c.missed, c.limits)
		}
	}
}

// sample has a row of each kind. Two of its five budgets are missed.
func sample(log io.Writer) *sheet {
	s := &sheet{log: log}
	s.addTime("an empty cluster, to ready", 562*time.Millisecond, atMost(500))
	s.addMemory("an empty cluster, resident memory", 54.96, atMost(55))
	s.addCPU("an empty cluster, CPU", 0.35, unlimited)
	s.add(row{what: "pods elsewhere that come or go", shown: "98.0/s", value: 98, unit: eventRate, budget: atLeast(95)})
	ms := time.Millisecond
	s.addMedians("ADD with churn", times{30 * ms, 10 * ms, 15 * ms}, times{10 * ms}, atMost(1.2))
	s.addTails("policy written to verdict", times{20 * ms, 40 * ms}, atMost(40))
	return s
}

func TestSheet_WriteMarksMissedBudgets(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := sample(io.Discard).write(&out); err != nil {
		t.Fatal(err)
	}
	want := []string{"WHAT WAGGLE CONTROL RATIO BUDGET",
		"an empty cluster, to ready 562.00 ms - - <= 500 ms MISSED",
		"an empty cluster, resident memory 55.0 MB - - <= 55 MB",
		"an empty cluster, CPU 0.35 % - -",
		"pods elsewhere that come or go 98.0/s - - >= 95 events/s",
		"ADD with churn, p50 of 3 (p99) 15.00 ms (30.00 ms) 10.00 ms 1.500 <= 1.2 MISSED",
		"policy written to verdict, p99 of 2 (p50) 40.00 ms (40.00 ms) - - <= 40 ms",
		"", "2 of 5 budgets missed",
		"an empty cluster, to ready: 562.00 ms, budget <= 500 ms",
		"ADD with churn, p50 of 3 (p99): 15.00 ms (30.00 ms), 1.500 of 10.00 ms, budget <= 1.2"}
	if got := lines(out.String()); !slices.Equal(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// lines returns the lines of a text, with one space between words.
func lines(text string) (all []string) {
	for line := range strings.Lines(text) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return all
}

func TestSheet_FinishReturnsVerdict(t *testing.T) {
	t.Parallel()
	met := func(log io.Writer) *sheet {
		s := &sheet{log: log}
		s.addMemory("200 pods on the node, resident memory", 59, atMost(60))
		return s
	}
	for name, c := range map[string]struct {
		rows   func(io.Writer) *sheet
		err    error
		strict bool
		code   int
	}{
		"met, strict":            {met, nil, true, 0},
		"missed":                 {sample, nil, false, 0},
		"missed, strict":         {sample, nil, true, budgetMissed},
		"failed":                 {met, errors.New("the API server ended"), false, failed},
		"failed, missed, strict": {sample, errors.New("the API server ended"), true, failed},
	} {
		var out, log strings.Builder
		s := c.rows(&log)
		if code := s.finish(&out, c.err, c.strict); code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, code, c.code)
		}
		if !strings.Contains(out.String(), "budgets missed") || !strings.Contains(log.String(), s.rows[0].String()+"\n") {
			t.Errorf("%s: not all rows are printed\n%s%s", name, out.String(), log.String())
		}
		if named := strings.Contains(log.String(), "the API server ended"); named != (c.err != nil) {
			t.Errorf("%s: the log is %q", name, log.String())
		}
	}
}

// A run with -adds 0 or -writes 0 has no times. Its budgets are missed.
func TestSheet_WithoutTimes_MissesBudgets(t *testing.T) {
	t.Parallel()
	s := &sheet{log: io.Discard}
	s.addMedians("ADD with churn", nil, times{time.Millisecond}, atMost(1.2))
	s.addMedians("ADD with churn", times{time.Millisecond}, nil, atMost(1.2))
	s.addTails("policy written to verdict", nil, atMost(40))
	if missed := s.missed(); len(missed) != 3 || missed[2].shown != "none (none)" {
		t.Errorf("the missed rows are %v", missed)
	}
}

func TestSizes_BudgetsAreOfTheDefaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change         func(*sizes)
		crowded, large bool
	}{
		"the defaults":   {func(*sizes) {}, true, true},
		"more calls":     {func(s *sizes) { s.adds, s.writes, s.rest = 500, 500, time.Hour }, true, true},
		"fewer pods":     {func(s *sizes) { s.pods = 100 }, false, false},
		"fewer events":   {func(s *sizes) { s.events = 50 }, true, false},
		"fewer services": {func(s *sizes) { s.cluster.Services = 1000 }, true, false},
		"an empty one":   {func(s *sizes) { s.cluster.Nodes = 0 }, true, false},
	} {
		s := fullSizes
		c.change(&s)
		if crowded, large := s.crowded(crowdedMemoryBudget) != unlimited, s.large(largeMemoryBudget) != unlimited; crowded != c.crowded || large != c.large {
			t.Errorf("%s: budgets of the pods on the node: %t, of the large cluster: %t; want %t, %t", name, crowded, large, c.crowded, c.large)
		}
	}
}
