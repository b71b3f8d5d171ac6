package drift

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freeCost is the CPU time of a comparison that is repeated at the next interval: 0.05 % of a core at the default interval of 25 s.
	freeCost = 12500 * time.Microsecond
	// maxOmitted limits the omitted intervals: at the default interval the next comparison follows after 5 minutes at most.
	maxOmitted = 11
)

// Pace limits the CPU use of comparisons that read whole maps. A comparison that takes longer than freeCost is repeated after as many intervals as it took
// multiples of freeCost. The zero value is ready for use, by one goroutine.
type Pace struct {
	left  int                  // intervals to omit
	clock func() time.Duration // CPU time of the thread; nil for the real one
}

// Do calls compare, unless a previous comparison took so long that this interval is omitted. The caller must call it once per interval. Only the CPU time of the
// calling goroutine counts, not the time for which it waits. After an error the next interval is not omitted.
func (p *Pace) Do(compare func() error) error {
	if p.left > 0 {
		p.left--
		return nil
	}
	clock := p.clock
	if clock == nil {
		clock = threadClock
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := clock()
	if err := compare(); err != nil {
		return err
	}
	p.left = min(int((clock()-began-1)/freeCost), maxOmitted)
	return nil
}

// threadClock returns the CPU time that the thread of the caller has used, with a resolution of 1 ns (clock_gettime(2)).
func threadClock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails only for an unknown clock; Linux has had this one since 2.6.12
	return time.Duration(t.Nano())
}
