package ctgc

import (
	"testing"
	"testing/synctest"
	"time"
)

// The sweeps of a single change do not wait, and the sweeps of endless changes take a fiftieth of the time.
func TestSweepBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		budget := newSweepBudget()
		const each = 60 * time.Millisecond
		sweep := func() {
			time.Sleep(each)
			time.Sleep(budget.rest(each))
		}
		began := time.Now()
		for range 1 + len(lateSweeps) {
			sweep()
		}
		if took := time.Since(began); took != 3*each {
			t.Errorf("three sweeps took %v", took)
		}
		for range 1000 {
			sweep()
		}
		if took, least := time.Since(began), (1003*each-sweepSpan/sweepShare)*sweepShare; took < least || took > least+sweepShare*each {
			t.Errorf("1,003 sweeps took %v, want %v and at most one rest more", took, least)
		}
		if rest := budget.rest(2 * time.Minute); rest != 100*time.Minute {
			t.Errorf("after a sweep of two minutes the rest is %v", rest)
		}
	})
}
