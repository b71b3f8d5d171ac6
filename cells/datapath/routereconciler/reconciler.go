package routereconciler

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// pruneInterval is the interval of the scans for leftover routes of the agent.
const pruneInterval = 30 * time.Minute

func registerReconciler(params reconciler.Params, table statedb.RWTable[*desiredroutes.Route], o *ops) error {
	r, err := watchdog.Register(params, table,
		(*desiredroutes.Route).Clone, (*desiredroutes.Route).WithStatus, (*desiredroutes.Route).GetStatus, o, nil,
		reconciler.WithName("routes"),
		reconciler.WithRefreshing(0, nil), // the repair job finds missing routes in the observed table
		reconciler.WithPruning(pruneInterval),
		// Most failures wait for a device, whose appearance marks the row pending; a minute would be too long for the others.
		reconciler.WithRetry(100*time.Millisecond, 10*time.Second),
		reconciler.WithRoundLimits(1000, rate.NewLimiter(1000, 1)),
	)
	if err != nil {
		return err
	}
	watchdog.Add(params.JobGroup, "retry-prune", func(ctx context.Context, health cell.Health) error {
		watchdog.Idle(ctx) // the job only counts and triggers
		retryPrune(ctx, health, o.pruned, r.Prune)
		return nil
	})
	return nil
}

// retryPrune calls prune again after a failure, at growing intervals, and is degraded until one succeeds.
func retryPrune(ctx context.Context, health cell.Health, outcomes <-chan error, prune func()) {
	var backoff job.ExponentialBackoff
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-outcomes:
			if err == nil {
				backoff, again = job.ExponentialBackoff{Min: time.Second, Max: time.Minute}, nil
				health.OK("no stale routes remain")
				continue
			}
			if backoff.Min == 0 {
				backoff = job.ExponentialBackoff{Min: time.Second, Max: time.Minute}
			}
			health.Degraded("stale routes could not be removed", err)
			again = time.After(backoff.Wait())
		case <-again:
			again = nil
			prune()
		}
	}
}
