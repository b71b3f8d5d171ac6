package drift

import (
	"context"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

const (
	// Grace is how long a row must be Done before observed state counts as drift: observers lag a little behind the kernel.
	Grace = 250 * time.Millisecond
	// pause is the minimum time between two comparisons; the first one after an idle period does not wait.
	pause = 20 * time.Millisecond
)

// Compare calls look with a snapshot of the tables, desired and observed ones: once at the start, whenever a table changes, and after the returned recheck
// time; 0 means only after a change. It returns when ctx ends.
func Compare(ctx context.Context, w Watch, look func(statedb.ReadTxn) (recheck time.Duration), tables ...statedb.TableMeta) error {
	limiter := rate.NewLimiter(rate.Every(pause), 1)
	for limiter.Wait(ctx) == nil {
		txn := heartbeat.Snapshot(ctx, w.DB, tables...)
		changed := statedb.NewWatchSet()
		for _, t := range tables {
			_, ch := statedb.AnyTable{Meta: t}.AllWatch(txn)
			changed.Add(ch)
		}
		wait, cancel := ctx, context.CancelFunc(func() {})
		if recheck := look(txn); recheck > 0 {
			wait, cancel = context.WithTimeout(ctx, recheck)
		}
		heartbeat.Idle(ctx)
		_, _ = changed.Wait(wait, 0) // an error means that the time or ctx ended
		cancel()
	}
	return nil
}
