package loader

import (
	"context"
	"fmt"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// reload loads the programs again after maps of flows have been resized: programs that were loaded for the change use two maps, and keep the former maps in
// memory. It returns at once if the programs were loaded without a change. Maps change before the table bpf-maps does, so reload asks the programs which maps
// they were loaded with.
func (g *generation) reload(ctx context.Context, health cell.Health) error {
	if !g.params.Kernel.Programs.Resizing() {
		return nil
	}
	for attempt, pause := 1, firstReload; g.params.Kernel.Programs.Resizing(); attempt++ {
		if attempt > 1 {
			if watchdog.Sleep(ctx, pause) != nil {
				return nil
			}
			pause = min(2*pause, lastReload)
		}
		if !g.await(ctx, func(txn statedb.ReadTxn) bool { return !isResizing(txn, g.params.Maps) }) {
			return nil
		}
		if err := g.replace(attempt); err != nil {
			health.Degraded("programs that use maps of the previous size stay attached", err)
		}
	}
	health.OK(fmt.Sprintf("datapath generation %d is loaded", g.number))
	if g.await(ctx, g.runs) {
		g.params.Kernel.Programs.Unload()
	}
	return nil
}

// isResizing reports whether the size of a map of flows is being changed.
func isResizing(txn statedb.ReadTxn, table statedb.Table[*bpfmaps.Map]) bool {
	for m := range table.All(txn) {
		if m.Shadow != "" && slices.Contains(bpf.FlowMaps(), m.Name) {
			return true
		}
	}
	return false
}

// replace loads the programs again. If that fails, the programs of the previous load are kept.
func (g *generation) replace(attempt int) error {
	loaded, err := g.params.Kernel.Programs.Load()
	if err != nil {
		return explain(err)
	}
	g.mu.Lock()
	g.programs = loaded
	g.mu.Unlock()
	g.publish(attempt, nil)
	return nil
}

// runs reports whether every hook runs the programs of the last load.
func (g *generation) runs(txn statedb.ReadTxn) bool {
	for a := range g.params.Hooks.All(txn) {
		if p := g.program(a.Program); p != nil && a.ProgramID != p.ID {
			return false
		}
	}
	return attachments.Replaced(txn, g.params.Hooks)
}

// await waits until a condition on the tables of maps and hooks is true. It returns false if ctx ends first.
func (g *generation) await(ctx context.Context, holds func(statedb.ReadTxn) bool) bool {
	watched := []statedb.TableMeta{g.params.Maps, g.params.Hooks}
	return loop.Await(ctx, g.params.DB, loop.Options{Tables: watched}, func(r *loop.Round) bool {
		r.Watch(watched...)
		return holds(r.Txn)
	})
}
