package desiredroutes

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	tables "github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// grace is how long a route may be Done before its absence from the observed routes counts: the observer lags a little
// behind the kernel.
const grace = 250 * time.Millisecond

// repair compares desired routes with observed ones and marks those that must be written again.
type repair struct {
	cell.In
	DB        *statedb.DB
	Table     statedb.RWTable[*tables.Route]
	Routes    statedb.Table[*devices.Route]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
}

func registerRepair(jobs job.Group, r repair) { jobs.Add(job.OneShot("repair-routes", r.run)) }

func (r *repair) run(ctx context.Context, health cell.Health) error {
	repaired := 0
	tried := make(map[string]needs)
	for {
		txn := r.DB.ReadTxn()
		_, wantedChanged := r.Table.AllWatch(txn)
		_, routesChanged := r.Routes.AllWatch(txn)
		_, linksChanged := r.Devices.AllWatch(txn)
		_, addrsChanged := r.Addresses.AllWatch(txn)
		rows, recheck := r.broken(txn, tried, time.Now())
		repaired += r.mark(rows)
		health.OK(fmt.Sprintf("Routes are as wanted (%d marked)", repaired))

		var later <-chan time.Time
		if recheck > 0 {
			later = time.After(recheck)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wantedChanged:
		case <-routesChanged:
		case <-linksChanged:
		case <-addrsChanged:
		case <-later:
		}
	}
}

// needs is what a route asks of the node: its device, up, and its source address.
type needs struct {
	index  int
	up     bool
	source bool
}

func (r *repair) needs(txn statedb.ReadTxn, row *tables.Route) (n needs) {
	if d, _, found := r.Devices.Get(txn, devices.ByName(row.Device)); found {
		n.index, n.up = d.Index, d.Up
	}
	for a := range r.Addresses.All(txn) {
		n.source = n.source || a.Addr() == row.Src
	}
	return n
}

// broken finds rows that should be written again: Done but not seen in the kernel, or failed and not tried since their
// device or source address came or changed. A row may fail after that was seen, so tried holds with what each row was
// tried last. The second result is when to look again, 0 for not before a change.
func (r *repair) broken(txn statedb.ReadTxn, tried map[string]needs, now time.Time) (rows []*tables.Route, recheck time.Duration) {
	if ok, _ := r.Routes.Initialized(txn); !ok {
		return nil, 0
	}
	for row := range r.Table.All(txn) {
		switch row.Status.Kind {
		case reconciler.StatusKindError:
			if n := r.needs(txn, row); n.index != 0 && tried[key(row)] != n {
				tried[key(row)] = n
				rows = append(rows, row)
			}
		case reconciler.StatusKindDone:
			delete(tried, key(row))
			d, _, present := r.Devices.Get(txn, devices.ByName(row.Device))
			if present && r.seen(txn, wanted(row, d.Index)) {
				continue
			}
			if age := now.Sub(row.Status.UpdatedAt); age < grace {
				recheck = max(recheck, grace-age)
				continue
			}
			rows = append(rows, row)
		}
	}
	return rows, recheck
}

// seen tells whether the observed routes hold this one.
func (r *repair) seen(txn statedb.ReadTxn, want route) bool {
	for have := range r.Routes.List(txn, devices.RouteByLink(want.Link)) {
		if want == (route{Table: have.Table, Dst: have.Dst, Priority: have.Priority, Link: have.LinkIndex, Gw: have.Gw,
			Src: have.Src, MTU: have.MTU, Scope: have.Scope, Protocol: int(have.Protocol)}) {
			return true
		}
	}
	return false
}

// mark makes rows pending, unless they have changed since they were judged.
func (r *repair) mark(rows []*tables.Route) (marked int) {
	if len(rows) == 0 {
		return 0
	}
	txn := r.DB.WriteTxn(r.Table)
	defer txn.Abort()
	for _, row := range rows {
		now, _, found := r.Table.Get(txn, tables.ByKey(key(row)))
		if !found || now != row {
			continue
		}
		if _, _, err := r.Table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending())); err == nil {
			marked++
		}
	}
	txn.Commit()
	return marked
}
