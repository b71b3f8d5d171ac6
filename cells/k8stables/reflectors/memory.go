package reflectors

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// memory returns to the system what bursts of objects took. The runtime keeps as much as twice the live heap for the next burst, which in a cluster of 150,000
// pods is hundreds of megabytes that are never used again.
type memory struct {
	sizes   func() sizes
	release func()
}

// sizes are of the heap, in bytes.
type sizes struct {
	live   uint64 // that the last collection found to be in use
	mapped uint64 // that the system has given, and may have back: live, garbage and free
}

const (
	// releaseInterval is a little less than the two minutes after which the runtime collects garbage in any case. Releasing collects garbage as well, so that
	// an agent at rest is not collected more often.
	releaseInterval = 115 * time.Second
	// leastExcess is the size, in bytes, below which nothing is worth a release.
	leastExcess = 16 << 20
)

func newMemory() memory { return memory{readSizes, debug.FreeOSMemory} }

// run looks at the sizes until ctx ends.
func (m memory) run(ctx context.Context) {
	ctx, end := heartbeat.With(ctx, "release-memory")
	defer end()
	for heartbeat.Sleep(ctx, releaseInterval) == nil {
		if m.sizes().excessive() {
			m.release()
		}
	}
}

// excessive reports whether more than an eighth of the live heap could be returned.
func (s sizes) excessive() bool {
	return s.mapped > s.live+max(s.live/8, leastExcess)
}

// readSizes asks the runtime.
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
