package figures

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestLimit_Missed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit  Limit
		value  Value
		text   string
		missed bool
	}{
		"none":              {Limit{}, Value{5, "MB"}, "", false},
		"at the bound":      {Within(time.Second), Time(time.Second), "<= 1 s", false},
		"over":              {Within(600 * time.Millisecond), Time(601 * time.Millisecond), "<= 600 ms", true},
		"reached":           {AtLeast(Value{0.92, Ratio}), Value{0.92, Ratio}, ">= 0.92", false},
		"not reached":       {AtLeast(Value{0.92, Ratio}), Value{0.919, Ratio}, ">= 0.92", true},
		"none of a kind":    {AtMost(Value{0, "datagrams"}), Value{1, "datagrams"}, "<= 0 datagrams", true},
		"large":             {AtMost(Value{20000, "instructions"}), Value{20000, "instructions"}, "<= 20000 instructions", false},
		"not a number":      {AtMost(Value{1, Ratio}), Value{math.NaN(), Ratio}, "<= 1", true},
		"no number at all":  {AtLeast(Value{1, Ratio}), Value{math.NaN(), Ratio}, ">= 1", true},
		"a control of zero": {AtLeast(Value{1, Ratio}), Of(3, 0), ">= 1", true},
	} {
		if got := c.limit.missed(c.value); got != c.missed || c.limit.String() != c.text {
			t.Errorf("%s: %v misses %q: %t, want %q: %t", name, c.value, c.limit, got, c.text, c.missed)
		}
	}
}

func TestLimit_OtherUnit_Panics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a time was compared with a budget in MB")
		}
	}()
	AtMost(Value{1, "MB"}).missed(Time(time.Second))
}

func sample() *Sheet {
	s := &Sheet{}
	s.Begin("pods")
	s.Add("ADD, p50", "5.00 ms", "4.00 ms", Of(5, 4), AtMost(Value{0.8, Ratio}))
	s.Add("size", "40.0 MB", "", Value{40, "MB"}, AtMost(Value{42, "MB"}))
	s.Begin("promises")
	s.Add("stop, p50 (max of 3)", "1.00 s (5.43 s)", "", Time(5434*time.Millisecond), Within(5*time.Second))
	s.Add("entries", "7", "", Value{7, "entries"}, Limit{})
	return s
}

func TestSheet_TableEndsWithMissedBudgets(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := sample().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"WHAT WAGGLE CONTROL RATIO BUDGET", "ADD, p50 5.00 ms 4.00 ms 1.250 <= 0.8 MISSED", "size 40.0 MB - - <= 42 MB",
		"stop, p50 (max of 3) 1.00 s (5.43 s) - - <= 5 s MISSED", "entries 7 - -", "", "2 of 3 budgets missed",
		"ADD, p50: 1.250, budget <= 0.8", "stop, p50 (max of 3): 1.00 s (5.43 s), budget <= 5 s"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestSheet_JSONHasEachRow(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var rows []Row
	if err := json.Unmarshal([]byte(b.String()), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 4 || rows[2] != (Row{Part: "promises", What: "stop, p50 (max of 3)", Waggle: "1.00 s (5.43 s)", Value: 5.434, Unit: "s",
		Budget: "<= 5 s", Missed: true}) {
		t.Errorf("the rows are %+v", rows)
	}
}

func TestSheet_WithoutFigures_IsValidJSON(t *testing.T) {
	t.Parallel()
	s := &Sheet{}
	s.Add("nothing", "-", "", Value{math.NaN(), Ratio}, Limit{})
	for _, sheet := range []*Sheet{s, {}} {
		var b strings.Builder
		if err := sheet.WriteJSON(&b); err != nil || !json.Valid([]byte(b.String())) || !strings.HasPrefix(b.String(), "[") {
			t.Errorf("%v: %s", err, b.String())
		}
	}
}
