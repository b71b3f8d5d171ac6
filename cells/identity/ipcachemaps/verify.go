package ipcachemaps

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// slice is the number of rows, and of entries of each map, that one run verifies. Smaller maps are verified completely in each run; half a million entries take
// three and a half hours.
const slice = 1000

// verifier compares the maps with the written rows, one slice at a time. Only its timer runs it.
type verifier struct {
	watch  drift.Watch
	table  statedb.RWTable[*ipcache.Entry]
	kernel kernel
	nodes  nodeLookup
	prune  func()

	mu      sync.Mutex   // held during a run; guards the fields below
	row     netip.Prefix // the first row of the next slice; invalid: start with the first row of the table
	entries cursor
}

type verifierParams struct {
	cell.In

	Watch      drift.Watch
	Table      statedb.RWTable[*ipcache.Entry]
	Kernel     kernel
	Nodes      nodeLookup
	Reconciler reconciler.Reconciler[*ipcache.Entry]
}

func newVerifier(p verifierParams) *verifier {
	return &verifier{watch: p.Watch, table: p.Table, kernel: p.Kernel, nodes: p.Nodes, prune: p.Reconciler.Prune}
}

// registerVerify verifies the maps periodically.
func registerVerify(jobs job.Group, v *verifier) {
	watchdog.AddTimer(jobs, "verify-ipcache", v.run, v.watch.Interval)
}

// run verifies the next slice: first that the rows are in the maps, then that the entries of the maps have rows.
func (v *verifier) run(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.rows(); err != nil {
		return fmt.Errorf("verify the map ipcache: %w", err)
	}
	unowned, err := v.findUnowned()
	if err != nil {
		return fmt.Errorf("verify the map ipcache: %w", err)
	}
	drift.PruneUnowned(ctx, v.watch, bpf.MapIpcache, unowned, func(p netip.Prefix) bool {
		txn := v.watch.DB.ReadTxn()
		known, _ := v.table.Initialized(txn)
		_, _, wanted := v.table.Get(txn, ipcache.ByPrefix(p))
		_, there, err := v.kernel.Get(p)
		return known && !wanted && there && err == nil
	}, v.prune)
	return nil
}

func (v *verifier) rows() error {
	before := v.watch.DB.ReadTxn()
	found := make(map[netip.Prefix]string)
	n := 0
	next := v.table.All(before)
	if v.row.IsValid() {
		next = v.table.LowerBound(before, ipcache.ByPrefix(v.row))
	}
	v.row = netip.Prefix{}
	for e := range next {
		if n++; n > slice {
			v.row = e.Prefix()
			break
		}
		if e.GetStatus().Kind != reconciler.StatusKindDone {
			continue
		}
		have, there, err := v.kernel.Get(e.Prefix())
		switch {
		case err != nil:
			return err
		case !there:
			found[e.Prefix()] = e.Prefix().String() + " is missing"
		case have != v.nodes.value(before, e, have):
			found[e.Prefix()] = e.Prefix().String() + " has another value"
		}
	}
	if len(found) > 0 {
		drift.Mark(v.watch, v.table, before, func(e *ipcache.Entry) []driftrepairs.Finding {
			return drift.If(found[e.Prefix()] != "", driftrepairs.MapEntry, bpf.MapIpcache, found[e.Prefix()])
		})
	}
	return nil
}

func (v *verifier) findUnowned() (all []netip.Prefix, err error) {
	entries, err := v.kernel.Some(&v.entries, slice)
	if err != nil {
		return nil, err
	}
	txn := v.watch.DB.ReadTxn()
	for p := range entries {
		if _, _, wanted := v.table.Get(txn, ipcache.ByPrefix(p)); !wanted {
			all = append(all, p)
		}
	}
	return all, nil
}
