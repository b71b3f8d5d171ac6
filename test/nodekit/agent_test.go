package nodekit

import (
	"os"
	"testing"
	"time"
)

func TestSince_CountsThreadsThatCameAndNoneThatWent(t *testing.T) {
	t.Parallel()
	before := map[string]time.Duration{"went": time.Hour, "works": time.Second, "another of the number": time.Minute}
	after := map[string]time.Duration{"came": time.Millisecond, "works": 3 * time.Second, "another of the number": time.Second}
	if got, want := since(before, after), 2*time.Second+time.Millisecond; got != want {
		t.Errorf("threads waited %v, want %v", got, want)
	}
}

func TestWaitingForCPU_IsReadFromTheKernel(t *testing.T) {
	t.Parallel()
	waited, err := WaitingForCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := waited(); got < 0 || got > time.Minute {
		t.Errorf("this process has waited for %v", got)
	}
	if len(runDelays(os.Getpid())) == 0 {
		t.Error("no thread of this process was found")
	}
	if _, err := WaitingForCPU(-1); err == nil {
		t.Error("a process that is none has waited for a CPU")
	}
}

func TestEnding_StarvedWhenSomeThreadAlwaysWaited(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		waited time.Duration
		want   bool
	}{{0, false}, {time.Second, false}, {4 * time.Second, false}, {5 * time.Second, true}} {
		if e := (Ending{Took: 4 * time.Second, Waited: c.waited}); e.Starved() != c.want {
			t.Errorf("after %v of waiting: %v", c.waited, e.Starved())
		}
	}
}
