package drift

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

const (
	// pace is the least time between two looks after the first few: somebody who changes things all the time causes five
	// a second.
	pace  = 200 * time.Millisecond
	burst = 5
	// patience is how many looks one announcement causes at most. What is still wrong then is found on the timer.
	patience = 25
)

// Follow looks at the kernel whenever next returns, which is when something was announced that may be drift. look is [Mark]
// with what was read; while it wants to look again, because rows are being written, it does. An error of next ends it:
// then the timer finds what it would have found.
func Follow(ctx context.Context, health cell.Health, next func(context.Context) error, look func() (again bool, err error)) error {
	limiter := rate.NewLimiter(rate.Every(pace), burst)
	health.OK("Listening")
	for {
		heartbeat.Idle(ctx)
		err := next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			health.Degraded("Not listening any more: changes are found on the timer only", err)
			return nil
		}
		again := true
		for tries := 0; again && tries < patience; tries++ {
			if limiter.Wait(ctx) != nil {
				return nil
			}
			heartbeat.Busy(ctx)
			if again, err = look(); err != nil {
				health.Degraded("The kernel cannot be read", err)
				again = true
				continue
			}
			health.OK("Listening")
		}
	}
}
