package main

import (
	"testing"
	"time"
)

func TestSlowness(t *testing.T) {
	t.Parallel()
	for start, want := range map[time.Duration]float64{
		0:                      1,
		budgetStart / 2:        1,
		budgetStart:            1,
		900 * time.Microsecond: 2,
		time.Second:            maxSlowness,
	} {
		if got := slownessOf(start); got != want {
			t.Errorf("a start takes %v: %v, want %v", start, got, want)
		}
	}
	if got, err := slowness(); err != nil || got < 1 || got > maxSlowness {
		t.Errorf("this machine: %v, %v", got, err)
	}
}

// The budgets of tiers that mostly compile include a reserve for slow machines.
func TestTiers_BudgetsScaleWithMachine(t *testing.T) {
	t.Parallel()
	want := map[string]float64{"lint": 1, "hermetic": 1, "machine": 2, "node": 2, "kernels": 2, "kube": 2}
	for _, tier := range tiers {
		got, err := tier.slowness(func() (float64, error) { return 2, nil })
		if err != nil || got != want[tier.name] {
			t.Errorf("%s: %v, %v, want %v", tier.name, got, err, want[tier.name])
		}
	}
}
