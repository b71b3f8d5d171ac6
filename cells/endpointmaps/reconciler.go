package endpointmaps

import (
	"errors"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

const (
	pruneInterval = 30 * time.Minute // an entry that nobody wants does no harm at once; the verify job finds it earlier
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
	roundSize     = 1000 // rows between two commits of statuses
)

// verifier compares the three maps with their rows.
type verifier struct {
	on        tables
	facts     reconciler.Reconciler[*bpfendpoints.Facts]
	links     reconciler.Reconciler[*bpfendpoints.Link]
	addresses reconciler.Reconciler[*bpfendpoints.Address]
}

// tables are the three tables and their maps.
type tables struct {
	cell.In

	DB        *statedb.DB
	Facts     statedb.RWTable[*bpfendpoints.Facts]
	Links     statedb.RWTable[*bpfendpoints.Link]
	Addresses statedb.RWTable[*bpfendpoints.Address]
	Kernel    kernel
	Drift     drift.Watch
}

// newVerifier registers one reconciler for each table, and keeps them to call for a prune.
func newVerifier(params reconciler.Params, t tables) (*verifier, error) {
	v := &verifier{on: t}
	var err1, err2, err3 error
	v.facts, err1 = register(params, t.Facts, factsOps{t.Kernel.facts}, factsOps{t.Kernel.facts}, "endpoint-facts")
	v.links, err2 = register(params, t.Links, linkOps(t.Kernel.links), nil, "bpf-links")
	v.addresses, err3 = register(params, t.Addresses, addressOps(t.Kernel.addresses), nil, "bpf-endpoints")
	return v, errors.Join(err1, err2, err3)
}

// register makes one reconciler. The three share nothing but their options, so a failure of one map delays no other.
func register[R drift.Row[R]](
	params reconciler.Params, table statedb.RWTable[R], ops reconciler.Operations[R], batch reconciler.BatchOperations[R],
	name string,
) (reconciler.Reconciler[R], error) {
	return heartbeat.Register(params, table,
		func(r R) R { return r.Clone() },
		func(r R, s reconciler.Status) R { return r.WithStatus(s) },
		func(r R) reconciler.Status { return r.GetStatus() },
		ops, batch,
		reconciler.WithName(name),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: an ADD may be in the table
	)
}
