package drift

import (
	"context"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
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
	return loop.Run(ctx, w.DB, loop.Options{Tables: tables, Pause: pause}, func(r *loop.Round) error {
		r.Watch(tables...)
		if recheck := look(r.Txn); recheck > 0 {
			r.Within(recheck)
		}
		return nil
	})
}
