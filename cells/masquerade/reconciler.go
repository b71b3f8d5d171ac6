package masquerade

import (
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
)

const (
	pruneInterval = 30 * time.Minute // the verify job finds what nobody wants earlier
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
)

// verifier compares the maps with their rows.
type verifier struct {
	netdevs    look[*tables.Netdev, uint32, bpf.Netdev]
	exclusions look[*tables.Exclusion, netip.Prefix, uint32]
	watch      drift.Watch
}

type verifierParams struct {
	cell.In

	Reconciler reconciler.Params
	Netdevs    statedb.RWTable[*tables.Netdev]
	Exclusions statedb.RWTable[*tables.Exclusion]
	Kernel     kernel
	Drift      drift.Watch
}

// newVerifier registers one reconciler for each table, and keeps them to call for a prune.
func newVerifier(p verifierParams) (*verifier, error) {
	netdevs := ops[*tables.Netdev, uint32, bpf.Netdev]{bpf.MapNetdevs, p.Kernel.netdevs, netdevEntry}
	exclusions := ops[*tables.Exclusion, netip.Prefix, uint32]{bpf.MapUnmasqueraded, p.Kernel.exclusions, exclusionEntry}
	a, err1 := register(p.Reconciler, p.Netdevs, netdevs)
	b, err2 := register(p.Reconciler, p.Exclusions, exclusions)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &verifier{
		netdevs:    look[*tables.Netdev, uint32, bpf.Netdev]{p.Drift, p.Netdevs, netdevs, a.Prune},
		exclusions: look[*tables.Exclusion, netip.Prefix, uint32]{p.Drift, p.Exclusions, exclusions, b.Prune},
		watch:      p.Drift,
	}, nil
}

func register[R drift.Row[R], K, V comparable](
	params reconciler.Params, table statedb.RWTable[R], o ops[R, K, V],
) (reconciler.Reconciler[R], error) {
	return heartbeat.Register(params, table,
		func(r R) R { return r.Clone() },
		func(r R, s reconciler.Status) R { return r.WithStatus(s) },
		func(r R) reconciler.Status { return r.GetStatus() },
		o, nil,
		reconciler.WithName(o.name),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second write
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(1000, rate.NewLimiter(rate.Inf, 1)), // no wait: a changed address is in use at once
	)
}
