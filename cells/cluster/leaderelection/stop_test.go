package leaderelection

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestElection_StopTakesTwoSecondsAtMost: a stopping leader releases its Lease, and waits at most 2 s for a server that does not answer.
// A stop of the process has 4 s for all hooks.
func TestElection_StopTakesTwoSecondsAtMost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut  bool
		late time.Duration
		want time.Duration
	}{
		"responds at once":     {false, 0, 0},
		"responds after 1.9 s": {false, 1900 * time.Millisecond, 1900 * time.Millisecond},
		"responds after 3 s":   {false, 3 * time.Second, 2 * time.Second},
		"does not respond":     {true, 0, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := run(t, &server{}, "a")
				wait(t, time.Second, "a leads", a.leads, a)
				a.set(c.cut, false, c.late)
				began := time.Now()
				a.stop()
				if took := time.Since(began); took != c.want {
					t.Errorf("stopped after %v, want %v", took, c.want)
				}
				if a.leads() {
					t.Error("a leads after it has stopped")
				}
			})
		})
	}
}
