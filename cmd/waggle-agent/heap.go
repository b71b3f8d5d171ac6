package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	// heapGrowth is by how much of what is in use the heap grows until it is collected, in percent. Half of the memory of an agent at rest was what Go's
	// default of 100 keeps free. Collections are a tenth of its CPU, and come a third more often.
	heapGrowth = 75
	// heapRoom is the most by which a heap grows, in bytes. What is live between garbage when a large heap stops to grow keeps the memory of both: with 75
	// percent that was a fifth of the memory of the pods of a large cluster. With 32 MB, a pod that appears takes a sixth more CPU time.
	heapRoom = 32 << 20
	// leastGrowth bounds what the collection of a very large heap takes, in percent.
	leastGrowth = 15
)

// boundHeap leaves GOGC of the environment alone. The growth is no longer followed once stop was called.
func (a *agent) boundHeap() (stop func()) {
	var stopped atomic.Bool
	if !slices.ContainsFunc(a.environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(heapGrowth)
		followHeap(&stopped)
	}
	return func() { stopped.Store(true) }
}

// collected is an object that nothing refers to: the next collection finds it.
type collected struct{ _ *byte }

// followHeap sets the growth of the heap after each collection.
func followHeap(stopped *atomic.Bool) {
	runtime.AddCleanup(new(collected), func(stopped *atomic.Bool) {
		if stopped.Load() {
			return
		}
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		debug.SetGCPercent(growth(live[0].Value.Uint64()))
		followHeap(stopped)
	}, stopped)
}

// growth is by how many percent a heap grows of which so many bytes are in use.
func growth(live uint64) int {
	return int(min(heapGrowth, max(leastGrowth, 100*heapRoom/max(live, 1))))
}
