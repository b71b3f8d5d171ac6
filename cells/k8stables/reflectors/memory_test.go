package reflectors

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A heap that is much larger than what is in use is returned once, and a small excess never.
func TestMemory_ReleasesWhatABurstTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, released := sizes{live: 200 << 20, mapped: 240 << 20}, 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := memory{func() sizes { return now }, func() { released++; now.mapped = now.live }}
		go m.run(ctx)
		pass := func() {
			time.Sleep(releaseInterval)
			synctest.Wait()
		}
		pass()
		require.Zero(t, released, "40 MB of 240")
		now.mapped = 400 << 20
		pass()
		require.Equal(t, 1, released)
		pass()
		require.Equal(t, 1, released, "nothing is left to return")
		now = sizes{live: 10 << 20, mapped: 25 << 20}
		pass()
		require.Equal(t, 1, released, "a small agent")
		now.mapped = 40 << 20
		pass()
		require.Equal(t, 2, released)
	})
}

// The runtime's figures see a burst come and go.
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
	require.True(t, sizes{live: before.live, mapped: during.mapped}.excessive())
	newMemory().release()
	require.Less(t, readSizes().mapped, during.mapped-burst/2)
}
