package endpointmaps

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// registerVerify runs the verifier on a timer. The maps have some hundred entries, so each time they are read as a whole.
func registerVerify(jobs job.Group, v *verifier) {
	heartbeat.AddTimer(jobs, "verify-endpoint-maps", v.run, v.on.Drift.Interval)
}

// run looks at each map once.
func (v *verifier) run(ctx context.Context) error {
	facts, links, addresses := factsOps{v.on.Kernel.facts}, linkOps(v.on.Kernel.links), addressOps(v.on.Kernel.addresses)
	return errors.Join(
		look[*bpfendpoints.Facts, uint16, bpf.EndpointFacts]{v.on.Drift, bpf.MapEndpointFacts, v.on.Facts,
			func(f *bpfendpoints.Facts) uint16 { return f.ID }, v.on.Kernel.facts.Dump, facts.differs, v.facts.Prune}.run(ctx),
		look[*bpfendpoints.Link, uint32, uint16]{v.on.Drift, bpf.MapLinks, v.on.Links, links.key,
			v.on.Kernel.links.Dump, links.differs, v.links.Prune}.run(ctx),
		look[*bpfendpoints.Address, netip.Addr, bpf.EndpointRef]{v.on.Drift, bpf.MapEndpoints, v.on.Addresses, addresses.key,
			v.on.Kernel.addresses.Dump, addresses.differs, v.addresses.Prune}.run(ctx),
	)
}

// look compares one map with the rows that were written.
type look[R drift.Row[R], K comparable, V any] struct {
	watch   drift.Watch
	name    string // of the map
	table   statedb.RWTable[R]
	key     func(R) K
	dump    func() (map[K]V, error)
	differs func(map[K]V) func(R) string
	prune   func()
}

// run marks the rows that differ, and has entries removed that nobody wants.
func (l look[R, K, V]) run(ctx context.Context) error {
	before := l.watch.DB.ReadTxn()
	have, err := l.dump()
	if err != nil {
		return err
	}
	differs := l.differs(have)
	drift.Mark(l.watch, l.table, before, func(row R) []driftrepairs.Finding {
		found := differs(row)
		return drift.If(found != "", driftrepairs.MapEntry, l.name, found)
	})
	strangers := l.strangers(before, have)
	if len(strangers) == 0 {
		return nil
	}
	drift.Strangers(ctx, l.watch, l.name, strangers, l.still(), l.prune)
	return nil
}

// strangers are the entries without a row.
func (l look[R, K, V]) strangers(txn statedb.ReadTxn, have map[K]V) (keys []K) {
	wanted := make(map[K]bool)
	for row := range l.table.All(txn) {
		wanted[l.key(row)] = true
	}
	for key := range have {
		if !wanted[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// still tells whether an entry has no row now. Until the table is complete every entry may get one.
func (l look[R, K, V]) still() func(K) bool {
	var now []K
	looked := false
	return func(key K) bool {
		if !looked {
			looked = true
			txn := l.watch.DB.ReadTxn()
			if complete, _ := l.table.Initialized(txn); complete {
				if have, err := l.dump(); err == nil {
					now = l.strangers(txn, have)
				}
			}
		}
		return slices.Contains(now, key)
	}
}
