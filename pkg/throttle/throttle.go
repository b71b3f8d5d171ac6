// Package throttle limits the share of a core, or of the time, that repeated work uses: it measures each run and returns the pause that must follow.
package throttle

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Limit is the limit of one loop. Only one goroutine may use it.
type Limit struct {
	// Ratio is the minimum ratio of the time to the cost of all runs: the work uses at most 1/Ratio of any longer time.
	Ratio int
	// Burst is the cost that causes no pause after a time without runs.
	Burst time.Duration
	// Min and Max bound a pause; Min applies if it exceeds Max. Cost that would need a pause beyond Max is ignored, so that one exceptional run does not delay
	// later ones.
	Min, Max time.Duration
	// Measure runs work and returns its cost: [CPUTime] or [WallTime]. Tests in virtual time replace CPUTime, which stays real there.
	Measure func(work func()) (cost time.Duration)

	paid time.Time // the time at which the cost of all previous runs is at most 1/Ratio of the time
}

// After returns the pause after a run. The caller calls it at the end of the run.
func (l *Limit) After(cost time.Duration) time.Duration {
	now, ratio := time.Now(), time.Duration(l.Ratio)
	if l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(ratio * cost)
	if longest := now.Add(ratio*l.Burst + l.Max); l.paid.After(longest) {
		l.paid = longest
	}
	return max(l.Min, l.paid.Sub(now)-ratio*l.Burst)
}

// CPUTime returns how long the thread of work used a CPU. Time in which the thread waits, for a CPU or for a disk, does not count, nor do goroutines that work
// starts. The clock has a resolution of 1 ns (clock_gettime(2)).
func CPUTime(work func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadClock()
	work()
	return threadClock() - began
}

func threadClock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails only for an unknown clock; Linux has had this one since 2.6.12
	return time.Duration(t.Nano())
}

// WallTime returns the duration of work, which includes waiting. It is the cost where work delays other work of its loop.
func WallTime(work func()) time.Duration {
	began := time.Now()
	work()
	return time.Since(began)
}
