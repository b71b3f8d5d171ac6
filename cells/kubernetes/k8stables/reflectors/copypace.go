package reflectors

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// copyShare is the least ratio of the pause between two copies to the CPU time of a copy: in a large cluster, where some row
// changes all the time, copies use a thousandth of a CPU.
const copyShare = 1000

// longestCopyPause bounds the pause between two copies of changed tables, whatever a copy costs. A copy of 500,000 rows takes
// about 1 s of CPU time.
const longestCopyPause = 10 * time.Minute

// copyPause returns the pause after a copy that used a CPU for cost. The pause is at least least, also where least exceeds
// [longestCopyPause].
func copyPause(least, cost time.Duration) time.Duration {
	return max(least, min(copyShare*cost, longestCopyPause))
}

// threadCPUTime runs work and returns how long its thread used a CPU. Time in which the thread waits, for a CPU or for a disk,
// does not count, nor do goroutines that work starts. The clock has a resolution of 1 ns (clock_gettime(2)).
func threadCPUTime(work func()) time.Duration {
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
