package reflectors

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// memory returns unused heap memory to the system after bursts of objects. The runtime keeps up to twice the live heap for the next burst; in a
// cluster of 150,000 pods that is hundreds of megabytes that are never used again.
type memory struct {
	sizes   func() sizes
	release func()
}

// sizes are sizes of the heap, in bytes.
type sizes struct {
	live   uint64 // in use at the last garbage collection
	mapped uint64 // mapped and not yet returned to the system: live, garbage and free
}

const (
	// releaseInterval is a little less than the two minutes after which the runtime collects the garbage of a small heap in any case. A release collects
	// garbage as well, so the collections of an idle agent do not become more frequent.
	releaseInterval = 115 * time.Second
	// leastExcess is the minimum excess for a release, in bytes.
	leastExcess = 16 << 20
)

func newMemory() memory { return memory{readSizes, debug.FreeOSMemory} }

// run checks the sizes at each interval until ctx ends.
func (m memory) run(ctx context.Context) {
	ctx, end := watchdog.With(ctx, "release-memory")
	defer end()
	left := uint64(0) // excess that the last release left
	for watchdog.Sleep(ctx, releaseInterval) == nil {
		now := m.sizes()
		left = min(left, now.excess())
		if now.excessive(left) {
			m.release()
			left = m.sizes().excess()
		}
	}
}

// excess returns the bytes beyond the live heap.
func (s sizes) excess() uint64 { return s.mapped - min(s.live, s.mapped) }

// excessive reports whether the excess is larger than an eighth of the live heap and than leastExcess. It ignores the excess that the last release left: free
// slots between live objects, which no release returns.
func (s sizes) excessive(left uint64) bool {
	return s.excess() > left+max(s.live/8, leastExcess)
}

// readSizes reads the sizes from the runtime.
func readSizes() sizes {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples)
	s := sizes{live: samples[0].Value.Uint64()}
	for _, part := range samples[1:] {
		s.mapped += part.Value.Uint64()
	}
	return s
}
