package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// heapGrowth is the heap growth in percent of the live heap until the next collection. Go's default of 100 kept half of the memory of an idle agent free.
	// Collections use a tenth of the agent's CPU time, and run a third more often with this value.
	heapGrowth = 75
	// maxHeapGrowth is the maximum growth of a busy heap in bytes. Objects that are live when a large heap stops growing are spread between garbage and keep the
	// memory of both allocated: with 75 percent this was a fifth of the memory for the pods of a large cluster. With 32 MB, a new pod costs a sixth more CPU
	// time.
	maxHeapGrowth = 32 << 20
	// heapRest is the time since a collection from which on the heap is idle. An earlier collection would not be worth its CPU time.
	heapRest = 30 * time.Second
	// leastGrowth is the minimum growth in percent. It bounds the cost of collecting a very large heap.
	leastGrowth = 15
	// leastRest is the size in bytes of the live heap from which on an idle heap has no periodic collections. Every two minutes the Go runtime collects a heap
	// that has grown less than heapGrowth. For the rows of 150,000 pods alone, 92 MB, a collection takes 75 ms of CPU time.
	leastRest = 64 << 20
)

// heapPacer sets the heap growth after each collection. While a large heap is idle, it replaces the growth in percent by a limit of the memory, because the
// runtime has no periodic collections without a growth in percent.
type heapPacer struct {
	limit int64 // memory limit at the start, in bytes; not math.MaxInt64 if the environment sets GOMEMLIMIT

	mu      sync.Mutex  // guards the fields below and the settings of the runtime
	last    time.Time   // time of the previous collection
	idle    *time.Timer // calls rest
	resting bool        // the memory limit replaces the growth in percent
	stopped bool
}

// boundHeap limits the heap growth unless the environment sets GOGC. After a call of stop, the growth is no longer adjusted.
func (a *agent) boundHeap() (stop func()) {
	if slices.ContainsFunc(a.environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		return func() {}
	}
	debug.SetGCPercent(heapGrowth)
	p := newHeapPacer()
	p.follow()
	return p.stop
}

func newHeapPacer() *heapPacer {
	p := &heapPacer{limit: debug.SetMemoryLimit(-1), last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = time.AfterFunc(heapRest, p.rest)
	return p
}

// stop ends the adjustments.
func (p *heapPacer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.idle.Stop()
	if p.resting {
		p.wake(heapGrowth)
	}
}

// collected is an object without references: the next collection runs its cleanup.
type collected struct{ _ *byte }

// follow calls adjust after each collection.
func (p *heapPacer) follow() {
	runtime.AddCleanup(new(collected), func(p *heapPacer) {
		if p.adjust() {
			p.follow()
		}
	}, p)
}

// adjust sets the heap growth after a collection. It returns false after stop.
func (p *heapPacer) adjust() bool {
	live, now := readHeap().live, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.wake(growth(live, now.Sub(p.last)))
	p.last = now
	p.idle.Reset(heapRest)
	return true
}

// wake limits the heap by a growth in percent. The caller holds mu.
func (p *heapPacer) wake(percent int) {
	debug.SetGCPercent(percent) // first, so that the heap always has a limit
	if p.resting {
		debug.SetMemoryLimit(p.limit)
	}
	p.resting = false
}

// rest limits the memory of an idle heap in place of its growth, unless the user has set a memory limit. The next collection ends it.
func (p *heapPacer) rest() {
	now := readHeap()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.resting || p.limit != math.MaxInt64 || now.live < leastRest || time.Since(p.last) < heapRest {
		return
	}
	limit := now.limit()
	if now.used+now.free > limit {
		p.idle.Reset(heapRest) // the runtime would collect garbage to return the free memory
		return
	}
	p.resting = true
	debug.SetMemoryLimit(int64(limit)) // first, so that the heap always has a limit
	debug.SetGCPercent(-1)
}

// heap is the memory of the runtime, in bytes.
type heap struct {
	live uint64 // live objects at the last collection
	used uint64 // memory of objects, with free slots between them, and all memory outside the heap
	free uint64 // memory without objects that is not returned to the system
}

// limit returns the memory limit that permits a growth of heapGrowth percent of the live heap.
func (h heap) limit() uint64 { return h.used + h.live*heapGrowth/100 }

func readHeap() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples)
	live, total, released, free := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()
	return heap{live: live, used: total - released - free, free: free}
}

// growth returns the heap growth in percent for live bytes and the time since the previous collection.
func growth(live uint64, after time.Duration) int {
	if after > heapRest {
		return heapGrowth
	}
	return int(min(heapGrowth, max(leastGrowth, 100*maxHeapGrowth/max(live, 1))))
}
