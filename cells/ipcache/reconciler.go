package ipcache

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
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
		(*ipcachetable.Entry).Clone, (*ipcachetable.Entry).WithStatus, (*ipcachetable.Entry).GetStatus, ops, nil,
		reconciler.WithName("ipcache"),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: the next ADD may be in the table
	)
}

// registerVerify compares on a timer.
func registerVerify(
	jobs job.Group, w drift.Watch, table statedb.RWTable[*ipcachetable.Entry], k kernel,
	r reconciler.Reconciler[*ipcachetable.Entry],
) {
	jobs.Add(job.Timer("verify-ipcache", heartbeat.Timer(jobs, "verify-ipcache", func(context.Context) error {
		return verify(w, table, k, r.Prune)
	}, w.Interval), w.Interval))
}

// verify compares the maps with the rows that were written, marks the rows that differ and asks for a prune when there
// is more than wanted.
func verify(w drift.Watch, table statedb.RWTable[*ipcachetable.Entry], k kernel, prune func()) error {
	before := w.DB.ReadTxn()
	have, err := k.Dump()
	if err != nil {
		return fmt.Errorf("verify the map ipcache: %w", err)
	}
	drift.Mark(w, table, before, func(e *ipcachetable.Entry) []driftrepairs.Finding {
		v, found := have[e.Prefix]
		if !found {
			return drift.If(true, driftrepairs.MapEntry, bpf.MapIpcache, e.Prefix.String()+" is missing")
		}
		return drift.If(v != valueOf(e), driftrepairs.MapEntry, bpf.MapIpcache, e.Prefix.String()+" has another value")
	})
	for e := range table.All(before) {
		delete(have, e.Prefix)
	}
	if len(have) > 0 {
		prune()
	}
	return nil
}
