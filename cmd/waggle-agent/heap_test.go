package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// Not parallel: the setting applies to the whole process.
func TestBoundHeap_KeepsUserSetting(t *testing.T) {
	before := debug.SetGCPercent(200)
	defer debug.SetGCPercent(before)
	current := func() int {
		percent := debug.SetGCPercent(200)
		debug.SetGCPercent(percent)
		return percent
	}
	(&agent{environ: []string{"PATH=/bin", "GOGC=200"}}).boundHeap()()
	if got := current(); got != 200 {
		t.Errorf("with GOGC=200 it is %d", got)
	}
	(&agent{environ: []string{"PATH=/bin"}}).boundHeap()()
	if got := current(); got != heapGrowth {
		t.Errorf("without it is %d, want %d", got, heapGrowth)
	}
}

// boundHeap sets the growth after each collection, not only after the first. Not parallel, see above.
func TestBoundHeap_IsSetAfterEachCollection(t *testing.T) {
	before := debug.SetGCPercent(200)
	defer debug.SetGCPercent(before)
	stop := (&agent{}).boundHeap()
	defer stop()
	for range 3 {
		debug.SetGCPercent(33)
		for debug.SetGCPercent(33) == 33 { // set in a previous iteration
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}
}

// A large heap without a collection for some time has a memory limit in place of a growth, until the next collection. Not parallel, see above.
func TestHeapPacer_LargeIdleHeap_HasNoPeriodicCollections(t *testing.T) {
	before := debug.SetGCPercent(heapGrowth)
	defer debug.SetGCPercent(before)
	settings := func() (percent int, limit int64) {
		percent = debug.SetGCPercent(-1)
		debug.SetGCPercent(percent)
		return percent, debug.SetMemoryLimit(-1)
	}
	p := newHeapPacer()
	defer p.stop()
	rest := func(since time.Duration) {
		p.mu.Lock()
		p.last = time.Now().Add(-since)
		p.mu.Unlock()
		p.rest()
	}
	debug.FreeOSMemory()
	if rest(time.Minute); readHeap().live < leastRest {
		if percent, limit := settings(); percent != heapGrowth || limit != math.MaxInt64 {
			t.Errorf("a small idle heap grows by %d %% up to %d bytes", percent, limit)
		}
	}
	block := make([]byte, leastRest)
	debug.FreeOSMemory()
	if rest(heapRest / 2); p.resting {
		t.Error("a heap is idle soon after a collection")
	}
	rest(time.Minute)
	least, most := int64(leastRest*(100+heapGrowth)/100), int64(readHeap().limit())+leastRest
	if percent, limit := settings(); percent != -1 || limit < least || limit > most {
		t.Errorf("a large idle heap grows by %d %% up to %d bytes, want no percentage and %d to %d bytes", percent, limit, least, most)
	}
	runtime.KeepAlive(block)
	if !p.adjust() {
		t.Error("the pacer has stopped")
	}
	if percent, limit := settings(); percent < leastGrowth || percent > heapGrowth || limit != math.MaxInt64 {
		t.Errorf("after a collection the heap grows by %d %% up to %d bytes", percent, limit)
	}
	rest(time.Minute)
	p.stop()
	if percent, limit := settings(); percent != heapGrowth || limit != math.MaxInt64 || p.adjust() {
		t.Errorf("after the end the heap grows by %d %% up to %d bytes", percent, limit)
	}
}

// The runtime would collect garbage at once if its free memory exceeded the limit.
func TestHeap_Limit(t *testing.T) {
	t.Parallel()
	h := heap{live: 100 << 20, used: 180 << 20, free: 75 << 20}
	if got, want := h.limit(), uint64(255<<20); got != want {
		t.Errorf("the limit is %d, want %d", got, want)
	}
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 75, 1 << 20: 75, 42 << 20: 75, 64 << 20: 50, 128 << 20: 25, 200 << 20: 16, 1 << 30: 15, 1 << 40: 15} {
		if got := growth(live, time.Second); got != want {
			t.Errorf("%d bytes: it grows by %d %%, want %d %%", live, got, want)
		}
		if got := growth(live, time.Minute); got != heapGrowth {
			t.Errorf("%d bytes at rest: it grows by %d %%, want %d %%", live, got, heapGrowth)
		}
	}
}
