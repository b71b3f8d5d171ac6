package routereconciler

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// repair compares desired routes with observed ones and marks rows pending whose route must be written again.
type repair struct {
	cell.In
	Drift     drift.Watch
	Table     statedb.RWTable[*desiredroutes.Route]
	Routes    statedb.Table[*devices.Route]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
}

func registerRepair(jobs job.Group, r repair) {
	watchdog.Add(jobs, "repair-routes", r.run)
}

func (r *repair) run(ctx context.Context, health cell.Health) error {
	tried := make(map[string]needs)
	return drift.Compare(ctx, r.Drift, func(txn statedb.ReadTxn) time.Duration {
		recheck := r.mark(txn, time.Now())
		r.again(r.failed(txn, tried))
		health.OK("routes match the desired state")
		return recheck
	}, r.Table, r.Routes, r.Devices, r.Addresses)
}

// needs are the dependencies of a route on the node: its device, up, and its source address.
type needs struct {
	index  int
	up     bool
	source bool
}

func (r *repair) needs(txn statedb.ReadTxn, row *desiredroutes.Route) (n needs) {
	if d, _, found := r.Devices.Get(txn, devices.ByName(row.Device)); found {
		n.index, n.up = d.Index, d.Up
	}
	for a := range r.Addresses.All(txn) {
		n.source = n.source || a.Addr() == row.Src
	}
	return n
}

// failed returns failed rows that were not tried since their device or source address was added or changed. A row may fail
// after the change was observed, so tried has the dependencies of the last attempt for each row.
func (r *repair) failed(txn statedb.ReadTxn, tried map[string]needs) (rows []*desiredroutes.Route) {
	for row := range r.Table.All(txn) {
		switch row.Status.Kind {
		case reconciler.StatusKindError:
			if n := r.needs(txn, row); n.index != 0 && tried[row.Key()] != n {
				tried[row.Key()] = n
				rows = append(rows, row)
			}
		case reconciler.StatusKindDone:
			delete(tried, row.Key())
		}
	}
	return rows
}

// mark marks rows pending that are Done and not observed in the kernel. It returns the delay of the next check, 0 to wait for a
// change.
func (r *repair) mark(txn statedb.ReadTxn, now time.Time) (recheck time.Duration) {
	if ok, _ := r.Routes.Initialized(txn); !ok {
		return 0
	}
	drift.Mark(r.Drift, r.Table, txn, func(row *desiredroutes.Route) []driftrepairs.Finding {
		d, _, present := r.Devices.Get(txn, devices.ByName(row.Device))
		if present && r.isObserved(txn, wanted(row, d.Index)) {
			return nil
		}
		if age := now.Sub(row.Status.UpdatedAt); age < drift.Grace {
			recheck = max(recheck, drift.Grace-age)
			return nil
		}
		return drift.If(true, driftrepairs.Route, row.Key(), r.found(txn, row))
	})
	return recheck
}

// found describes the route in the kernel with the key of a desired one.
func (r *repair) found(txn statedb.ReadTxn, row *desiredroutes.Route) string {
	for have := range r.observed(txn, wanted(row, 0)) {
		if have.Protocol == desiredroutes.Protocol {
			return "changed"
		}
		return fmt.Sprintf("replaced by a route of protocol %d", have.Protocol)
	}
	return "missing"
}

// observed returns the observed routes with the table, destination and priority of a route. It does not read the routes of a device: one device may have a
// route to each node.
func (r *repair) observed(txn statedb.ReadTxn, want route) iter.Seq2[*devices.Route, statedb.Revision] {
	place := devices.Route{Table: want.Table, Dst: want.Dst, Priority: want.Priority}
	return r.Routes.Prefix(txn, devices.RouteByID(place.Destination()))
}

// isObserved reports whether the observed routes contain this one.
func (r *repair) isObserved(txn statedb.ReadTxn, want route) bool {
	for have := range r.observed(txn, want) {
		if want == (route{Table: have.Table, Dst: have.Dst, Priority: have.Priority, Link: have.LinkIndex, Gw: have.Gw,
			Src: have.Src, MTU: have.MTU, Scope: have.Scope, Protocol: int(have.Protocol)}) {
			return true
		}
	}
	return false
}

// again marks rows pending, unless they have changed since the snapshot.
func (r *repair) again(rows []*desiredroutes.Route) {
	if len(rows) == 0 {
		return
	}
	txn := r.Drift.DB.WriteTxn(r.Table)
	defer txn.Abort()
	for _, row := range rows {
		now, _, found := r.Table.Get(txn, desiredroutes.ByKey(row.Key()))
		if !found || now != row {
			continue
		}
		_, _, _ = r.Table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending()))
	}
	txn.Commit()
}
