package reflectors

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// A slow disk and a busy CPU prolong a write, not the pause after it. The CPU time prolongs the pause, up to a bound.
func TestCopy_PauseFollowsCPUTime(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	for name, c := range map[string]struct{ elapsed, cpu, pause time.Duration }{
		"small cluster": {0, 100 * time.Microsecond, interval},
		"stalled disk":  {5 * time.Second, 100 * time.Microsecond, interval},
		"large cluster": {100 * time.Millisecond, 50 * time.Millisecond, 100 * time.Second},
		"huge cluster":  {10 * time.Second, 5 * time.Second, longestCopyPause},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, set := kubetest.New(t, kubetest.InMemory()), newSet(t)
				server.Put(node("one", "192.0.2.1"))
				source, err := New(Settings{NodeName: "one", Copy: filepath.Join(t.TempDir(), "copy"), CopyEvery: interval}, set,
					server.Client(t), func() bool { return false }, make(ended), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				type write struct{ began, ended time.Time }
				var writes []write // of the goroutine of the copy, read after its end
				source.pace.Measure = func(work func()) time.Duration { work(); return c.cpu }
				source.writeFile = func(path string, file []byte) error {
					began := time.Now()
					time.Sleep(c.elapsed)
					writes = append(writes, write{began, time.Now()})
					return snapshot.Write(path, file)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var done sync.WaitGroup
				done.Go(func() {
					if err := source.Run(ctx, newRecorder()); err != nil {
						t.Error(err)
					}
				})
				// Tables change all the time, long enough for a copy of all tables and two more.
				for i, step := 0, c.pause/10; i < 50; i++ {
					time.Sleep(step + c.elapsed)
					server.Put(pod("a", fmt.Sprint("p", i), "one"))
				}
				cancel()
				done.Wait()
				if len(writes) < 4 {
					t.Fatalf("%d copies were written", len(writes))
				}
				inner := writes[:len(writes)-1] // the last copy is due to the end
				before, after := inner[len(inner)-2], inner[len(inner)-1]
				if pause := after.began.Sub(before.ended); pause != c.pause {
					t.Errorf("the pause between two copies was %v, want %v", pause, c.pause)
				}
			})
		})
	}
}
