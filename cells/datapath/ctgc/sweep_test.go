package ctgc

import (
	"testing"
	"testing/synctest"
	"time"
)

// The sweeps of a single change do not wait, and a sweep of very many flows delays the next one for a bounded time.
func TestScanLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sweeps := newScanLimit(longestSweepRest)
		const each = 60 * time.Millisecond
		for i := range 1 + len(lateSweeps) {
			if rest := sweeps.After(each); rest != 0 {
				t.Errorf("after sweep %d the rest is %v", i, rest)
			}
		}
		if rest := sweeps.After(each); rest != 4*time.Second {
			t.Errorf("after four sweeps at once the rest is %v", rest)
		}
		if rest := sweeps.After(2 * time.Minute); rest != longestSweepRest {
			t.Errorf("after a sweep of two minutes the rest is %v", rest)
		}
	})
}
