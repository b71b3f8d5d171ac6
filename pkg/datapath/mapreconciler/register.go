package mapreconciler

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	pruneInterval = 30 * time.Minute // an entry without a row does no immediate harm; a Check finds it earlier
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
	roundSize     = 1000 // rows between two commits of statuses
)

// Register returns the reconciler that writes a table to its map. batch may be nil.
func Register[R drift.Row[R]](
	params reconciler.Params, name string, table statedb.RWTable[R], ops reconciler.Operations[R], batch reconciler.BatchOperations[R],
) (reconciler.Reconciler[R], error) {
	return watchdog.Register(params, table,
		func(r R) R { return r.Clone() },
		func(r R, s reconciler.Status) R { return r.WithStatus(s) },
		func(r R) reconciler.Status { return r.GetStatus() },
		ops, batch,
		reconciler.WithName(name),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // a Check marks rows that differ; other rows need no second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: packets may need the row
	)
}
