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
	db      *statedb.DB
	table   statedb.RWTable[*tables.Route]
	routes  statedb.Table[*devices.Route]
	devices statedb.Table[*devices.Device]
}

func registerRepair(jobs job.Group, db *statedb.DB, table statedb.RWTable[*tables.Route],
	routes statedb.Table[*devices.Route], links statedb.Table[*devices.Device],
) {
	r := &repair{db: db, table: table, routes: routes, devices: links}
	jobs.Add(job.OneShot("repair-routes", r.run))
}

func (r *repair) run(ctx context.Context, health cell.Health) error {
	repaired := 0
	var last map[string]link
	for {
		txn := r.db.ReadTxn()
		_, routesChanged := r.routes.AllWatch(txn)
		_, linksChanged := r.devices.AllWatch(txn)
		links := r.links(txn)
		rows, recheck := r.broken(txn, links, last, time.Now())
		last = links
		repaired += r.mark(rows)
		health.OK(fmt.Sprintf("Routes are as wanted (%d marked)", repaired))

		var later <-chan time.Time
		if recheck > 0 {
			later = time.After(recheck)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-routesChanged:
		case <-linksChanged:
		case <-later:
		}
	}
}

// link is what matters of a device.
type link struct {
	index int
	up    bool
}

func (r *repair) links(txn statedb.ReadTxn) map[string]link {
	links := make(map[string]link)
	for d := range r.devices.All(txn) {
		links[d.Name] = link{d.Index, d.Up}
	}
	return links
}

// broken finds rows that should be written again: Done but not seen in the kernel, or failed and their device has come
// or changed since the last look. The second result is when to look again, 0 for not before a change.
func (r *repair) broken(txn statedb.ReadTxn, links, last map[string]link, now time.Time) (rows []*tables.Route, recheck time.Duration) {
	if ok, _ := r.routes.Initialized(txn); !ok {
		return nil, 0
	}
	for row := range r.table.All(txn) {
		l, present := links[row.Device]
		switch row.Status.Kind {
		case reconciler.StatusKindError:
			if present && last[row.Device] != l {
				rows = append(rows, row)
			}
		case reconciler.StatusKindDone:
			if present && r.seen(txn, wanted(row, l.index)) {
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
	for have := range r.routes.List(txn, devices.RouteByLink(want.Link)) {
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
	txn := r.db.WriteTxn(r.table)
	defer txn.Abort()
	for _, row := range rows {
		now, _, found := r.table.Get(txn, tables.ByKey(key(row)))
		if !found || now != row {
			continue
		}
		if _, _, err := r.table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending())); err == nil {
			marked++
		}
	}
	txn.Commit()
	return marked
}
