package main

import (
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
