package drift

import (
	"errors"
	"testing"
	"time"
)

// A comparison that takes long is repeated after as many intervals as it took multiples of the free time.
func TestPace_LongComparison_OmitsIntervals(t *testing.T) {
	t.Parallel()
	failure := errors.New("the map cannot be read")
	for name, test := range map[string]struct {
		cost  time.Duration
		fails error
		want  int // intervals until the next comparison
	}{
		"no time":          {0, nil, 1},
		"the free time":    {freeCost, nil, 1},
		"a little more":    {freeCost + 1, nil, 2},
		"four times":       {4 * freeCost, nil, 4},
		"at the limit":     {12 * freeCost, nil, 12},
		"beyond the limit": {time.Minute, nil, 12},
		"failed":           {time.Minute, failure, 1},
	} {
		p := Pace{measure: func(work func()) time.Duration { work(); return test.cost }}
		runs := 0
		compare := func() error { runs++; return test.fails }
		if err := p.Do(compare); !errors.Is(err, test.fails) {
			t.Errorf("%s: the error is %v, want %v", name, err, test.fails)
		}
		intervals := 0
		for runs == 1 && intervals < 100 {
			intervals++
			_ = p.Do(compare)
		}
		if intervals != test.want {
			t.Errorf("%s: the next comparison follows after %d intervals, want %d", name, intervals, test.want)
		}
	}
}

// Time for which a comparison waits does not count.
func TestPace_Waiting_IsNoCost(t *testing.T) {
	t.Parallel()
	var p Pace
	if err := p.Do(func() error { time.Sleep(3 * freeCost); return nil }); err != nil || p.left.Load() > 0 {
		t.Errorf("after a comparison that waited, %d intervals are omitted (%v), want none", p.left.Load(), err)
	}
}
