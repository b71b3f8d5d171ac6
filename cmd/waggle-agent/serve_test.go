package main

import (
	"log/slog"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// By default the process ends within 4.5 s after the signal and writes the reason after 3 s. The documented limit is 5 s.
func TestBoundStop_EndsWithinLimits(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	for name, c := range map[string]struct {
		stops, again time.Duration // after the signal
		takes        time.Duration
		code         int
		recorded     bool
	}{
		"at once":                       {0, never, 0, 0, false},
		"soon":                          {2900 * time.Millisecond, never, 2900 * time.Millisecond, 0, false},
		"late":                          {4400 * time.Millisecond, never, 4400 * time.Millisecond, 0, true},
		"never":                         {never, never, 4500 * time.Millisecond, 1, true},
		"never, and signalled again":    {never, time.Second, time.Second, 143, false},
		"never, and signalled too late": {never, 4600 * time.Millisecond, 4500 * time.Millisecond, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				done, signals, recorded := make(chan struct{}), make(chan os.Signal, 1), time.Duration(0)
				began := time.Now()
				stops := time.AfterFunc(c.stops, func() { close(done) })
				again := time.AfterFunc(c.again, func() { signals <- syscall.SIGTERM })
				defer stops.Stop()
				defer again.Stop()
				code := boundStop(slog.New(slog.DiscardHandler), timesOfStop(stopTimeout), done, signals, func() { recorded = time.Since(began) })
				if took := time.Since(began); code != c.code || took != c.takes {
					t.Errorf("code %d after %v, want %d after %v", code, took, c.code, c.takes)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if c.recorded && recorded != 3*time.Second || !c.recorded && recorded != 0 {
					t.Errorf("stacks were written after %v: want %v, after 3s", recorded, c.recorded)
				}
			})
		})
	}
}
