package ipcache

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

const (
	pruneInterval = 30 * time.Minute // what nobody wants does no harm to others; the verify job finds it earlier
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
	roundSize     = 1000 // rows between two commits of statuses
)

// newReconciler pushes rows into the maps.
func newReconciler(
	params reconciler.Params, table statedb.RWTable[*ipcachetable.Entry], ops *ops,
) (reconciler.Reconciler[*ipcachetable.Entry], error) {
	return heartbeat.Register(params, table,
		(*ipcachetable.Entry).Clone, (*ipcachetable.Entry).WithStatus, (*ipcachetable.Entry).GetStatus, ops, ops,
		reconciler.WithName("ipcache"),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: the next ADD may be in the table
	)
}
