package masquerademaps

import (
	"context"
	"errors"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// verifier compares the maps with their rows.
type verifier struct {
	netdevs    mapreconciler.Check[*masquerade.Netdev, uint32, bpf.Netdev]
	exclusions mapreconciler.Check[*masquerade.Exclusion, netip.Prefix, uint32]
	watch      drift.Watch
}

type verifierParams struct {
	cell.In

	Reconciler reconciler.Params
	Netdevs    statedb.RWTable[*masquerade.Netdev]
	Exclusions statedb.RWTable[*masquerade.Exclusion]
	Kernel     kernel
	Drift      drift.Watch
}

// newVerifier registers one reconciler for each table, and keeps their prune functions.
func newVerifier(p verifierParams) (*verifier, error) {
	netdevs := mapreconciler.Map[*masquerade.Netdev, uint32, bpf.Netdev]{Name: bpf.MapNetdevs, Entries: p.Kernel.netdevs, Entry: netdevEntry}
	exclusions := mapreconciler.Map[*masquerade.Exclusion, netip.Prefix, uint32]{
		Name: bpf.MapUnmasqueraded, Entries: p.Kernel.exclusions, Entry: exclusionEntry}
	a, err1 := mapreconciler.Register(p.Reconciler, netdevs.Name, p.Netdevs, netdevs, nil)
	b, err2 := mapreconciler.Register(p.Reconciler, exclusions.Name, p.Exclusions, exclusions, nil)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &verifier{
		netdevs:    mapreconciler.CheckOf(p.Drift, p.Netdevs, netdevs, a.Prune),
		exclusions: mapreconciler.CheckOf(p.Drift, p.Exclusions, exclusions, b.Prune),
		watch:      p.Drift,
	}, nil
}

// registerVerify runs the verifier on a timer.
func registerVerify(jobs job.Group, v *verifier) {
	watchdog.AddTimer(jobs, "verify-netdevs", v.run, v.watch.Interval)
}

func (v *verifier) run(ctx context.Context) error {
	return errors.Join(v.netdevs.Run(ctx), v.exclusions.Run(ctx))
}
