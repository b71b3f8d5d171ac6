package waggle_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// waitingForCPU watches a process until the test ends. The function that it returns says how long threads of that could have run since
// and had no CPU, in sum: a limit of time is one of the agent's, and not of the machine's.
func waitingForCPU(t *testing.T, pid int) (waited func() time.Duration) {
	t.Helper()
	before, done := runDelays(pid), make(chan struct{})
	var mu sync.Mutex // guards latest
	latest := map[string]time.Duration{}
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		for thread, delay := range runDelays(pid) {
			latest[thread] = max(latest[thread], delay)
		}
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond) // threads say it as long as they live
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				look()
			}
		}
	})
	t.Cleanup(func() { close(done); watching.Wait() })
	return func() (sum time.Duration) {
		look()
		mu.Lock()
		defer mu.Unlock()
		for thread, delay := range latest {
			sum += delay - before[thread]
		}
		return sum
	}
}

// runDelays is how long each thread of a process has waited for a CPU.
func runDelays(pid int) map[string]time.Duration {
	delays := map[string]time.Duration{}
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		delays[thread] = runDelay(string(text))
	}
	return delays
}

// runDelay reads it from a line of the kernel; nothing from the empty line of a thread that has ended.
func runDelay(line string) time.Duration {
	fields := strings.Fields(line) // on a CPU, waiting for one, times that it was given one
	if len(fields) != 3 {
		return 0
	}
	ns, _ := strconv.ParseInt(fields[1], 10, 64)
	return time.Duration(ns)
}
