package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
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
	// heapRest is the time between collections from which on the heap is idle. An earlier collection would not be worth its CPU time.
	heapRest = 30 * time.Second
	// leastGrowth is the minimum growth in percent. It bounds the cost of collecting a very large heap.
	leastGrowth = 15
)

// boundHeap limits the heap growth unless the environment sets GOGC. After a call of stop, the growth is no longer adjusted.
func (a *agent) boundHeap() (stop func()) {
	var stopped atomic.Bool
	if !slices.ContainsFunc(a.environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(heapGrowth)
		followHeap(&stopped, time.Now())
	}
	return func() { stopped.Store(true) }
}

// collected is an object without references: the next collection runs its cleanup.
type collected struct{ _ *byte }

// followHeap sets the heap growth after each collection. last is the time of the previous collection.
func followHeap(stopped *atomic.Bool, last time.Time) {
	runtime.AddCleanup(new(collected), func(stopped *atomic.Bool) {
		if stopped.Load() {
			return
		}
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		now := time.Now()
		debug.SetGCPercent(growth(live[0].Value.Uint64(), now.Sub(last)))
		followHeap(stopped, now)
	}, stopped)
}

// growth returns the heap growth in percent for live bytes and the time since the previous collection.
func growth(live uint64, after time.Duration) int {
	if after > heapRest {
		return heapGrowth
	}
	return int(min(heapGrowth, max(leastGrowth, 100*maxHeapGrowth/max(live, 1))))
}
