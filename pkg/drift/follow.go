package drift

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// pace is the minimum time between two reads after the first few: a process that changes state all the time causes five reads a second.
	pace  = 200 * time.Millisecond
	burst = 5
	// maxReads is the maximum number of reads for one notification. The timer finds drift that remains after these.
	maxReads = 25
	// firstRetry and lastRetry are the pauses after an error of the notifications.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Follow reads the kernel whenever next returns, which means that a notification may report drift. look reads the kernel and calls [Mark]; Follow repeats it
// while it fails or returns true, because rows are being written. After an error of next only the timer detects drift; Follow calls next again, with back-off.
// When next can receive notifications again, it must return at once, because some may be lost.
func Follow(ctx context.Context, health cell.Health, next func(context.Context) error, look func() (again bool, err error)) error {
	limiter := rate.NewLimiter(rate.Every(pace), burst)
	health.OK("listening")
	pause := firstRetry
	for {
		watchdog.Idle(ctx)
		err := next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			health.Degraded("no notifications from the kernel: only the timer detects drift", err)
			if watchdog.Sleep(ctx, pause) != nil {
				return nil
			}
			pause = min(2*pause, lastRetry)
			continue
		}
		pause = firstRetry
		again := true
		for tries := 0; again && tries < maxReads; tries++ {
			if limiter.Wait(ctx) != nil {
				return nil
			}
			watchdog.Busy(ctx)
			if again, err = look(); err != nil {
				health.Degraded("the kernel cannot be read", err)
				again = true
				continue
			}
			health.OK("listening")
		}
	}
}
