package reflectors

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// untilDone is a clock whose waits end with a context: a reflector sleeps through some of its back-off without looking
// at its own.
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

// firstPause is the first step of the back-off.
const firstPause = 200 * time.Millisecond

// backoff of a reflector: jitter doubles a step at most, so none is longer than 4 s, and the list that follows is there
// before 6 s are over.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 1, Cap: 2 * time.Second, Steps: 16}
}
