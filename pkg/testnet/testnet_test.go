package testnet

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// outcome is a test that records its result.
type outcome struct {
	testing.TB
	skipped, failed bool
}

func (*outcome) Helper()                 {}
func (o *outcome) Skipf(string, ...any)  { o.skipped = true; runtime.Goexit() }
func (o *outcome) Fatalf(string, ...any) { o.failed = true; runtime.Goexit() }

func TestMissing_FailsInCI(t *testing.T) {
	for _, c := range []struct {
		ci      string
		skipped bool
	}{{"", true}, {"false", true}, {"true", false}} {
		t.Setenv("CI", c.ci)
		o, done := &outcome{TB: t}, make(chan struct{})
		go func() { defer close(done); Missing(o, "needs %s", "a compiler") }()
		<-done
		if o.skipped != c.skipped || o.failed == c.skipped {
			t.Errorf("CI=%q: skipped %t, failed %t, want skipped %t", c.ci, o.skipped, o.failed, c.skipped)
		}
	}
}

// On a slow machine a reply takes longer than the first attempt.
func TestAwait_SlowReply_GetsLongerAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		Await(t, func(ctx context.Context) error {
			attempts++
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if attempts != 4 { // of 1, 2, 4 and 8 s
			t.Errorf("%d attempts, want 4", attempts)
		}
	})
}
