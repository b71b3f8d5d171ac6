package ctgc

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

func TestPace_FollowsDeletedFraction(t *testing.T) {
	t.Parallel()
	const first = firstInterval
	for name, tc := range map[string]struct {
		config  Config
		deleted float64 // fraction of the map with the most deletions
		after   time.Duration
		want    time.Duration
	}{
		"nothing was over":                     {DefaultConfig, 0, first, first},
		"some":                                 {DefaultConfig, 0.1, first, first},
		"few":                                  {DefaultConfig, 0.01, first, first * 3 / 2},
		"half of it":                           {DefaultConfig, 0.5, first, first / 2},
		"all of it":                            {DefaultConfig, 1, first, 30 * time.Second},
		"a tenth in a tenth of the time":       {DefaultConfig, 0.1, first / 10, 30 * time.Second},
		"few, and the longest is near":         {Config{MaxInterval: 6 * time.Minute}, 0.01, first, 6 * time.Minute},
		"fixed":                                {Config{Interval: time.Minute, MaxInterval: maxInterval}, 1, time.Minute, time.Minute},
		"the longest is shorter than at first": {Config{MaxInterval: time.Minute}, 0, time.Minute, time.Minute},
	} {
		if err := tc.config.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p := newPace(tc.config)
		p.adapt(tc.deleted, tc.after)
		if d := p.current - tc.want; d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("%s: %s, want %s", name, p.current, tc.want)
		}
	}
	p := newPace(DefaultConfig)
	for range 100 {
		p.adapt(1, p.current)
	}
	if p.current != minInterval {
		t.Errorf("the shortest interval is %s", p.current)
	}
	for range 100 {
		p.adapt(0.001, p.current)
	}
	if p.current != maxInterval {
		t.Errorf("the longest interval is %s", p.current)
	}
}

func TestConfig_RejectsShortIntervals(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{Interval: time.Second, MaxInterval: maxInterval}, {MaxInterval: time.Second}, {Interval: -time.Minute, MaxInterval: maxInterval}} {
		if c.check() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// A pass that a signal requests begins minSpacing after the previous pass, however many signals there are; other passes keep removalSpacing.
func TestSpace_SignalsOvertakeRemovals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		least, pause time.Duration
		signalAfter  time.Duration // 0 for none
		took, want   time.Duration // want is the pause of the pass that follows
	}{
		"signal":               {minSpacing, 0, 0, minSpacing, 0},
		"removal":              {removalSpacing, removalPause, 0, removalSpacing, removalPause},
		"signal soon after":    {removalSpacing, removalPause, 100 * time.Millisecond, minSpacing, 0},
		"signal in between":    {removalSpacing, removalPause, 700 * time.Millisecond, 700 * time.Millisecond, 0},
		"signals all the time": {minSpacing, 0, 100 * time.Millisecond, minSpacing, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &collector{access: &access{signals: signalState{wake: make(chan struct{}, 1)}}, ended: time.Now()}
			if tc.signalAfter > 0 {
				time.AfterFunc(tc.signalAfter, c.signals.hurry)
			}
			begin := time.Now()
			pause, err := c.space(t.Context(), tc.least, tc.pause)
			if took := time.Since(begin); err != nil || pause != tc.want || took != tc.took {
				t.Errorf("%s: waited %s for a pass with pauses of %s: %v", name, took, pause, err)
			}
			if len(c.signals.wake) > 0 {
				t.Errorf("%s: the pass that follows answers all signals before it", name)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			c.ended = time.Now()
			if _, err := c.space(ctx, tc.least, tc.pause); err == nil {
				t.Errorf("%s: an agent that stops waits", name)
			}
		})
	}
}

// The flows without an endpoint have their own quota, three times the quota of an endpoint here, and so has the node.
func TestShareOf_FlowsWithoutEndpoint(t *testing.T) {
	t.Parallel()
	c := &access{percent: 25}
	counts := natCounts{flows: []bpf.NatCount{{Ipv4: 6, Ipv6: 1}, {Ipv4: 2, Ipv6: 1}}, totals: []bpf.NatCount{bpf.NatBeyond: {}, bpf.NatOfNode: {Ipv4: 3}}}
	rejected := map[uint16]uint64{0: 4, 1: 3}
	for row, want := range map[natTalker]natTalker{
		{Flows: 9}:              {Flows: 9, Counted: 7, Percent: 50, Refused: 4},
		{Endpoint: 1, Flows: 3}: {Endpoint: 1, Flows: 3, Counted: 3, Percent: 50, Refused: 3},
		{Node: true, Flows: 3}:  {Node: true, Flows: 3, Counted: 3, Percent: 25},
		{Target: "x", Flows: 3}: {Target: "x", Flows: 3},
	} {
		if c.shareOf(&row, counts, [2]uint32{32, 16}, rejected); row != want {
			t.Errorf("%+v, want %+v", row, want)
		}
	}
}

// A record of the ring buffer is a signal of eight bytes or an error.
func FuzzSignalOf(f *testing.F) {
	f.Add(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 4), 7))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, record []byte) {
		s, err := signalOf(record)
		if (err == nil) != (len(record) == binary.Size(bpf.CtSignal{})) {
			t.Errorf("%x: %+v, %v", record, s, err)
		}
		if err == nil && s.Endpoint != binary.NativeEndian.Uint32(record[4:]) {
			t.Errorf("%x: %+v", record, s)
		}
	})
}

// A signal ends the pauses of the current pass.
func TestRest_EndsWithASignal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &access{signals: signalState{wake: make(chan struct{}, 1)}}
		p := &pass{access: c, pause: calmPause}
		begin := time.Now()
		for range 3 {
			if err := p.rest(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took != 3*calmPause {
			t.Errorf("three slices rested %s", took)
		}
		c.signals.hurry()
		for range 3 {
			if err := p.rest(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took != 3*calmPause {
			t.Errorf("it rested on, %s in all", took)
		}
	})
}
