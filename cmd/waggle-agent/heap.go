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
	// heapGrowth is by how much of what is in use the heap grows until it is collected, in percent. Half of the memory of an agent at rest was what Go's
	// default of 100 keeps free. Collections are a tenth of its CPU, and come a third more often.
	heapGrowth = 75
	// heapRoom is the most by which a busy heap grows, in bytes. What is live between garbage when a large heap stops to grow keeps the memory of both: with
	// 75 percent that was a fifth of the memory of the pods of a large cluster. With 32 MB, a pod that appears takes a sixth more CPU time.
	heapRoom = 32 << 20
	// heapRest is the time between collections from which on a heap is at rest, where a collection is not worth its time before the runtime makes one.
	heapRest = 30 * time.Second
	// leastGrowth bounds what the collection of a very large heap takes, in percent.
	leastGrowth = 15
)

// boundHeap leaves GOGC of the environment alone. The growth is no longer followed once stop was called.
func (a *agent) boundHeap() (stop func()) {
	var stopped atomic.Bool
	if !slices.ContainsFunc(a.environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(heapGrowth)
		followHeap(&stopped, time.Now())
	}
	return func() { stopped.Store(true) }
}

// collected is an object that nothing refers to: the next collection finds it.
type collected struct{ _ *byte }

// followHeap sets the growth of the heap after each collection. The last one was at that time.
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

// growth is by how many percent a heap grows of which so many bytes are in use, a time after the collection before.
func growth(live uint64, after time.Duration) int {
	if after > heapRest {
		return heapGrowth
	}
	return int(min(heapGrowth, max(leastGrowth, 100*heapRoom/max(live, 1))))
}
