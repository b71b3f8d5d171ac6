package main

import (
	"testing"
	"time"
)

func TestSlowness(t *testing.T) {
	t.Parallel()
	for start, want := range map[time.Duration]float64{
		0:               1,
		budgetStart / 2: 1,
		budgetStart:     1,
		2 * budgetStart: 2,
		time.Second:     maxSlowness,
	} {
		if got := slownessOf(start); got != want {
			t.Errorf("a start takes %v: %v, want %v", start, got, want)
		}
	}
}

func TestSpeedometer_SamplesUntilStop(t *testing.T) {
	t.Parallel()
	s := startSpeedometer(t.Context(), time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	got, err := s.stop()
	if err != nil || got < 1 || got > maxSlowness {
		t.Errorf("this machine: %v, %v", got, err)
	}
	if s.starts < batch || s.starts%batch != 0 || s.used <= 0 {
		t.Errorf("%d starts used %v", s.starts, s.used)
	}
}

// The budgets of tiers that mostly compile include a reserve for slow machines.
func TestTiers_BudgetsScaleWithMachine(t *testing.T) {
	t.Parallel()
	want := map[string]time.Duration{"lint": 1, "hermetic": 1, "machine": 2, "node": 2, "kernels": 2, "kube": 2}
	for _, tier := range tiers {
		v := verdict{tier: tier, slowness: 2}
		if got := v.budget(); got != want[tier.name]*tier.budget {
			t.Errorf("%s: %v, want %d times %v", tier.name, got, want[tier.name], tier.budget)
		}
	}
}
