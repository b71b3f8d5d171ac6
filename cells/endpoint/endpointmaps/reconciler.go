package endpointmaps

import (
	"errors"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// tables has the three tables and their maps.
type tables struct {
	cell.In

	Facts     statedb.RWTable[*bpfendpoints.Facts]
	Links     statedb.RWTable[*bpfendpoints.Link]
	Addresses statedb.RWTable[*bpfendpoints.Address]
	Kernel    kernel
	Drift     drift.Watch
}

// newVerifier registers one reconciler for each table, and stores their Prune functions. The reconcilers are independent, so a failure of one map does not
// block the others.
func newVerifier(params reconciler.Params, t tables) (*verifier, error) {
	facts, links, addresses := factsOps{t.Kernel.facts}, linksOf(t.Kernel), addressesOf(t.Kernel)
	a, err1 := mapreconciler.Register(params, "endpoint-facts", t.Facts, facts, facts)
	b, err2 := mapreconciler.Register(params, "bpf-links", t.Links, links, nil)
	c, err3 := mapreconciler.Register(params, "bpf-endpoints", t.Addresses, addresses, nil)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return &verifier{
		facts: mapreconciler.Check[*bpfendpoints.Facts, uint16, bpf.EndpointFacts]{Watch: t.Drift, Name: bpf.MapEndpointFacts, Table: t.Facts,
			Key: func(f *bpfendpoints.Facts) uint16 { return f.ID }, Dump: t.Kernel.facts.Dump, Differs: facts.differs, Prune: a.Prune},
		links:     mapreconciler.CheckOf(t.Drift, t.Links, links, b.Prune),
		addresses: mapreconciler.CheckOf(t.Drift, t.Addresses, addresses, c.Prune),
		watch:     t.Drift,
	}, nil
}
