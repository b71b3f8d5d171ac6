package reflectors

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// untilDone is a clock whose timers also fire when a context ends: a reflector ignores its own context during a part of its back-off.
type untilDone struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (c untilDone) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	fire := func() {
		select {
		case ch <- time.Now():
		default:
		}
	}
	stop := context.AfterFunc(c.ctx, fire)
	time.AfterFunc(d, func() {
		stop()
		fire()
	})
	return ch
}

// firstPause is the first delay of the back-off.
const firstPause = 200 * time.Millisecond

// backoff returns the back-off of a reflector. Jitter at most doubles the cap of 2 s, so a delay is at most 4 s, and the next list is complete within
// 6 s.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 1, Cap: 2 * time.Second, Steps: 16}
}
