package main

import (
	"runtime/debug"
	"testing"
)

// Not parallel: the setting is the process's.
func TestBoundHeap_LeavesTheUsersSetting(t *testing.T) {
	before := debug.SetGCPercent(200)
	defer debug.SetGCPercent(before)
	current := func() int {
		percent := debug.SetGCPercent(200)
		debug.SetGCPercent(percent)
		return percent
	}
	(&agent{environ: []string{"PATH=/bin", "GOGC=200"}}).boundHeap()
	if got := current(); got != 200 {
		t.Errorf("with GOGC=200 it is %d", got)
	}
	(&agent{environ: []string{"PATH=/bin"}}).boundHeap()
	if got := current(); got != heapGrowth {
		t.Errorf("without it is %d, want %d", got, heapGrowth)
	}
}
