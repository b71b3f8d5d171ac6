package kubeapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Only what had to be waited for is held back, until an interval after the last such moment; the end of the request ends that.
func TestGather_Holds(t *testing.T) {
	t.Parallel()
	const interval = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(Gathering(t.Context(), interval))
		defer cancel()
		g := gatherOf(ctx)
		read := func(waits, want time.Duration) {
			t.Helper()
			began := time.Now()
			time.Sleep(waits)
			g.hold(began)
			if took := time.Since(began); took != want {
				t.Errorf("a read that waits %v took %v, want %v", waits, took, want)
			}
		}
		read(time.Hour, time.Hour)
		read(0, 0)
		read(10*time.Millisecond, interval)
		read(0, 0)
		read(0, 0)
		read(30*time.Millisecond, interval)
		read(interval, interval)
		read(waited-1, waited-1)
		time.AfterFunc(20*time.Millisecond, cancel)
		read(10*time.Millisecond, 20*time.Millisecond)
	})
}

func TestGather_OnlyWhereItIsWanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatherOf(t.Context())
		began := time.Now()
		time.Sleep(time.Second)
		for range 10 {
			g.hold(began)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it was held back for %v", took-time.Second)
		}
	})
}
