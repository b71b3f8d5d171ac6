package testnet

import (
	"runtime"
	"testing"
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
