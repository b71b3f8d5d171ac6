package reflectors

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A heap that is much larger than its live part is released once. A small excess is never released, and what a release could not return does not cause
// another one.
func TestMemory_ReleasesHeapAfterBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards now, fixed and released
		var now sizes
		fixed := uint64(0) // bytes beyond the live heap that a release does not return
		released := 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := memory{func() sizes {
			mu.Lock()
			defer mu.Unlock()
			return now
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			released++
			now.mapped = now.live + fixed
		}}
		go m.run(ctx)
		// after returns how often memory was released after the heap has had these sizes for an interval.
		after := func(s sizes) int {
			mu.Lock()
			now = s
			mu.Unlock()
			time.Sleep(releaseInterval)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return released
		}
		require.Zero(t, after(sizes{live: 200 << 20, mapped: 220 << 20}), "20 MB of 220")
		require.Equal(t, 1, after(sizes{live: 200 << 20, mapped: 400 << 20}))
		require.Equal(t, 1, after(sizes{live: 200 << 20, mapped: 200 << 20}), "nothing is left to return")
		require.Equal(t, 1, after(sizes{live: 10 << 20, mapped: 25 << 20}), "a small agent")
		require.Equal(t, 2, after(sizes{live: 10 << 20, mapped: 40 << 20}))
		fixed = 60 << 20
		require.Equal(t, 3, after(sizes{live: 100 << 20, mapped: 200 << 20}))
		require.Equal(t, 3, after(sizes{live: 100 << 20, mapped: 175 << 20}), "the release has left 60 MB, and 15 MB are new")
		require.Equal(t, 4, after(sizes{live: 100 << 20, mapped: 180 << 20}), "20 MB are new")
		require.Equal(t, 5, after(sizes{live: 50 << 20, mapped: 160 << 20}), "half of the live heap was deleted")
		require.Equal(t, 5, after(sizes{live: 100 << 20, mapped: 130 << 20}), "objects have filled a part of the rest")
		require.Equal(t, 6, after(sizes{live: 100 << 20, mapped: 160 << 20}))
	})
}

// The metrics of the runtime show a burst and its release.
func TestMemory_ReadsTheRuntime(t *testing.T) {
	const burst = 64 << 20
	debug.FreeOSMemory()
	before := readSizes()
	block := make([]byte, burst)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	during := readSizes()
	runtime.KeepAlive(block)
	require.Greater(t, during.mapped, before.mapped+burst/2)
	require.True(t, sizes{live: before.live, mapped: during.mapped}.excessive(before.excess()))
	newMemory().release()
	require.Less(t, readSizes().mapped, during.mapped-burst/2)
}
