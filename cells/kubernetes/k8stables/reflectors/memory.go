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
	// releaseInterval is a little less than the two minutes after which the runtime collects garbage in any case. A release collects garbage as well,
	// so the collections of an idle agent do not become more frequent.
	releaseInterval = 115 * time.Second
	// leastExcess is the minimum excess for a release, in bytes.
	leastExcess = 16 << 20
)

func newMemory() memory { return memory{readSizes, debug.FreeOSMemory} }

// run checks the sizes at each interval until ctx ends.
func (m memory) run(ctx context.Context) {
	ctx, end := watchdog.With(ctx, "release-memory")
	defer end()
	for watchdog.Sleep(ctx, releaseInterval) == nil {
		if m.sizes().excessive() {
			m.release()
		}
	}
}

// excessive reports whether the excess over the live heap is larger than an eighth of it and than leastExcess.
func (s sizes) excessive() bool {
	return s.mapped > s.live+max(s.live/8, leastExcess)
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
