package objectwriter

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

// health records whether the last report was degraded.
type health struct {
	cell.Health
	degraded bool
}

func (h *health) OK(string)              { h.degraded = false }
func (h *health) Degraded(string, error) { h.degraded = true }

// TestLoop: writes fail for ten minutes, then succeed with one name removed, and a watched channel closes an hour later.
func TestLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := statedb.New()
		table, err := nodeupdates.NewNodeTable(db)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex // guards the variables of pass
		var passes []time.Time
		state, names, changed := nodeupdates.Failed, []string{"a", "b"}, make(chan struct{})
		h := &health{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- Loop(ctx, h, db, table, func(_ context.Context, watch *statedb.WatchSet) (updates []nodeupdates.Update) {
				mu.Lock()
				defer mu.Unlock()
				passes = append(passes, time.Now())
				watch.Add(changed)
				for _, name := range names {
					updates = append(updates, nodeupdates.Update{Name: name, State: state, Message: "why"})
				}
				return updates
			})
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		for i := 1; i < len(passes); i++ {
			if wait := passes[i].Sub(passes[i-1]); wait > longWait || i > 10 && wait < longWait/2 {
				t.Errorf("attempt %d came after %v", i, wait)
			}
		}
		if len(passes) < 100 || !h.degraded {
			t.Errorf("%d attempts, degraded %v", len(passes), h.degraded)
		}
		since := stored(db, table)["a"].Since
		if time.Since(since) < 9*time.Minute {
			t.Errorf("it has failed since %v", since)
		}

		state, names = nodeupdates.Done, []string{"a"}
		mu.Unlock()
		time.Sleep(longWait)
		synctest.Wait()
		mu.Lock()
		n := len(passes)
		if got := stored(db, table); h.degraded || len(got) != 1 || got["a"].State != nodeupdates.Done || !got["a"].Since.After(since) {
			t.Errorf("the rows are %v, degraded %v", got, h.degraded)
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		if len(passes) != n {
			t.Errorf("%d passes without a change", len(passes)-n)
		}
		before := changed
		changed = make(chan struct{})
		close(before)
		mu.Unlock()
		time.Sleep(pause)
		synctest.Wait()
		mu.Lock()
		if len(passes) != n+1 {
			t.Errorf("%d passes after a change", len(passes)-n)
		}
		mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func stored(db *statedb.DB, table statedb.Table[nodeupdates.Update]) map[string]nodeupdates.Update {
	all := map[string]nodeupdates.Update{}
	for row := range table.All(db.ReadTxn()) {
		all[row.Name] = row
	}
	return all
}
