package drift

import (
	"sync/atomic"
	"time"

	"github.com/waggle-net/waggle/pkg/throttle"
)

const (
	// freeCost is the CPU time of a comparison that is repeated at the next interval: 0.02 % of a core at the default interval of 25 s.
	freeCost = 5 * time.Millisecond
	// maxOmitted limits the omitted intervals: at the default interval the next comparison follows after 5 minutes at most.
	maxOmitted = 11
)

// Pace limits the CPU use of comparisons that read whole maps. A comparison that takes longer than freeCost is repeated after as many intervals as it took
// multiples of freeCost. The zero value is ready for use. It is safe for concurrent use.
type Pace struct {
	left    atomic.Int32                           // intervals to omit
	measure func(work func()) (cost time.Duration) // nil: [throttle.CPUTime]
}

// Do calls compare, unless a previous comparison took so long that this interval is omitted. The caller must call it once per interval. Only the CPU time of the
// calling goroutine counts, not the time for which it waits. After an error the next interval is not omitted.
func (p *Pace) Do(compare func() error) (err error) {
	if p.left.Add(-1) >= 0 {
		return nil
	}
	measure := p.measure
	if measure == nil {
		measure = throttle.CPUTime
	}
	cost := measure(func() { err = compare() })
	if err == nil {
		p.left.Store(int32(min((cost-1)/freeCost, maxOmitted)))
	}
	return err
}
