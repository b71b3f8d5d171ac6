package reflectors

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestAwaitSync_ReleasesMemoryAfterTheStart completes the last table after a second.
func TestAwaitSync_ReleasesMemoryAfterTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends     time.Duration // end of the agent
		released time.Duration // 0 for never
	}{
		"the agent runs":                  {ends: time.Hour, released: time.Second + releaseDelay},
		"the agent ends before":           {ends: 2 * time.Second},
		"the agent ends before the lists": {ends: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, released := time.Now(), time.Duration(0)
				s := &Source{set: newSet(t), release: func() { released = time.Since(began) }}
				write := func(state sources.State) {
					txn := s.set.Write()
					defer txn.Commit()
					if err := s.set.SetSource(txn, sources.Source{Table: "k8s-nodes", Producer: Producer, State: state}); err != nil {
						t.Error(err)
					}
				}
				write(sources.Waiting)
				time.AfterFunc(time.Second, func() { write(sources.Synced) })
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				s.awaitSync(ctx, newRecorder())
				if took := time.Since(began); released != c.released || took != min(c.ends, time.Second+releaseDelay) {
					t.Errorf("memory was released after %v, want %v; awaitSync took %v", released, c.released, took)
				}
				time.Sleep(time.Second) // for the second write
			})
		})
	}
}
