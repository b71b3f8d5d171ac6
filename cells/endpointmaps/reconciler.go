package endpointmaps

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

const (
	pruneInterval  = 30 * time.Minute // an entry that nobody wants does no harm at once; the verify job finds it earlier
	verifyInterval = 30 * time.Second // how long a foreign change of the maps may go unnoticed
	minRetry       = 100 * time.Millisecond
	maxRetry       = time.Minute
	roundSize      = 1000 // rows between two commits of statuses
)

// tables are the three tables to reconcile.
type tables struct {
	cell.In

	Params    reconciler.Params
	Facts     statedb.RWTable[*bpfendpoints.Facts]
	Links     statedb.RWTable[*bpfendpoints.Link]
	Addresses statedb.RWTable[*bpfendpoints.Address]
	Kernel    kernel
}

func registerReconcilers(t tables) error {
	facts, links, addresses := factsOps{t.Kernel.facts}, linkOps(t.Kernel.links), addressOps(t.Kernel.addresses)
	f, err1 := register(t.Params, t.Facts, facts, "endpoint-facts")
	l, err2 := register(t.Params, t.Links, links, "bpf-links")
	a, err3 := register(t.Params, t.Addresses, addresses, "bpf-endpoints")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	db := t.Params.DB
	t.Params.JobGroup.Add(job.Timer("verify-endpoint-maps", func(context.Context) error {
		return errors.Join(
			verify(db, t.Facts, t.Kernel.facts.Dump, facts.differs, f.Prune),
			verify(db, t.Links, t.Kernel.links.Dump, links.differs, l.Prune),
			verify(db, t.Addresses, t.Kernel.addresses.Dump, addresses.differs, a.Prune),
		)
	}, verifyInterval))
	return nil
}

// register makes one reconciler. The three share nothing but their options, so a failure of one map delays no other.
func register[R drift.Row[R]](
	params reconciler.Params, table statedb.RWTable[R], ops reconciler.Operations[R], name string,
) (reconciler.Reconciler[R], error) {
	return reconciler.Register(params, table,
		func(r R) R { return r.Clone() },
		func(r R, s reconciler.Status) R { return r.WithStatus(s) },
		func(r R) reconciler.Status { return r.GetStatus() },
		ops, nil,
		reconciler.WithName(name),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: an ADD may be in the table
	)
}

// verify compares a map with the rows that were written, marks those that differ, and asks for a prune when the map has
// more than is wanted.
func verify[R drift.Row[R], K comparable, V any](
	db *statedb.DB, table statedb.RWTable[R], dump func() (map[K]V, error), differs func(map[K]V) func(R) bool, prune func(),
) error {
	before := db.ReadTxn()
	have, err := dump()
	if err != nil {
		return err
	}
	drift.Mark(db, table, before, differs(have))
	if len(have) > table.NumObjects(before) {
		prune()
	}
	return nil
}
