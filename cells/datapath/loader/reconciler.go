package loader

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	pruneInterval = 5 * time.Minute // stale pins are rare: only a permanently removed device of Waggle leaves one; a later scan repeats one that failed
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
	roundSize     = 32 // attachments between two commits of statuses: each takes about a millisecond, and an ADD waits
)

func registerReconciler(params reconciler.Params, table statedb.RWTable[*attachments.Attachment], o *ops) error {
	_, err := watchdog.Register(params, table,
		(*attachments.Attachment).Clone, (*attachments.Attachment).WithStatus, (*attachments.Attachment).GetStatus, o, nil,
		reconciler.WithName("attachments"),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks rows that differ, so rows need no refresh
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no delay between rounds: an ADD may be in the table
	)
	return err
}
