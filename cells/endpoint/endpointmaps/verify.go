package endpointmaps

import (
	"context"
	"errors"
	"net/netip"

	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// verifier compares the three maps with their rows.
type verifier struct {
	facts     mapreconciler.Check[*bpfendpoints.Facts, uint16, bpf.EndpointFacts]
	links     mapreconciler.Check[*bpfendpoints.Link, uint32, uint16]
	addresses mapreconciler.Check[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef]
	watch     drift.Watch
}

// registerVerify runs the verifier periodically.
func registerVerify(jobs job.Group, v *verifier) {
	watchdog.AddTimer(jobs, "verify-endpoint-maps", v.run, v.watch.Interval)
}

// run verifies each map once.
func (v *verifier) run(ctx context.Context) error {
	return errors.Join(v.facts.Run(ctx), v.links.Run(ctx), v.addresses.Run(ctx))
}
