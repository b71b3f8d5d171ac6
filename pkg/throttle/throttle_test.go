package throttle

import (
	"testing"
	"testing/synctest"
	"time"
)

// Runs within the burst do not wait, and endless runs take the share of the time.
func TestLimit_BurstAndShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const each, burst, ratio = 60 * time.Millisecond, 200 * time.Millisecond, 50
		limit := Limit{Ratio: ratio, Burst: burst, Max: time.Minute, Measure: WallTime}
		run := func() { time.Sleep(limit.After(limit.Measure(func() { time.Sleep(each) }))) }
		began := time.Now()
		for range 3 {
			run()
		}
		if took := time.Since(began); took != 3*each {
			t.Errorf("three runs took %v", took)
		}
		for range 1000 {
			run()
		}
		if took, least := time.Since(began), (1003*each-burst)*ratio; took < least || took > least+ratio*each {
			t.Errorf("1,003 runs took %v, want %v and at most one pause more", took, least)
		}
		time.Sleep(burst * ratio)
		if pause := limit.After(burst); pause != 0 {
			t.Errorf("after a time without runs, the pause is %v", pause)
		}
	})
}

// A pause is bounded, and an exceptional run does not change the pause after the next one.
func TestLimit_PauseIsBounded(t *testing.T) {
	t.Parallel()
	const least, longest = time.Second, 10 * time.Second
	for name, c := range map[string]struct {
		limit       Limit
		cost, pause time.Duration
	}{
		"no cost":                {Limit{Ratio: 50, Max: longest}, 0, 0},
		"usual cost":             {Limit{Ratio: 50, Max: longest}, 5 * time.Millisecond, 250 * time.Millisecond},
		"exceptional cost":       {Limit{Ratio: 50, Max: longest}, time.Minute, longest},
		"exceptional with burst": {Limit{Ratio: 50, Burst: least, Max: longest}, time.Minute, longest},
		"less than the minimum":  {Limit{Ratio: 50, Min: least, Max: longest}, time.Millisecond, least},
		"minimum over maximum":   {Limit{Ratio: 50, Min: longest, Max: least}, time.Minute, longest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for range 2 {
					pause := c.limit.After(c.cost)
					if pause != c.pause {
						t.Errorf("the pause is %v, want %v", pause, c.pause)
					}
					time.Sleep(pause)
				}
				const usual = 100 * time.Millisecond
				time.Sleep(c.limit.Burst * time.Duration(c.limit.Ratio))
				if pause := c.limit.After(c.limit.Burst + usual); pause != max(c.limit.Min, min(c.limit.Max, 50*usual)) {
					t.Errorf("after the next run the pause is %v", pause)
				}
			})
		})
	}
}

// A thread that waits uses no CPU, and one that works does.
func TestCPUTime_CountsOnlyWork(t *testing.T) {
	t.Parallel()
	const used = 20 * time.Millisecond
	work := func() {
		for began := threadClock(); threadClock()-began < used; {
		}
	}
	if got := CPUTime(work); got < used {
		t.Errorf("work of %v counted as %v", used, got)
	}
	if got := CPUTime(func() { time.Sleep(used) }); got >= used {
		t.Errorf("a sleep of %v counted as %v of CPU time", used, got)
	}
}
