package routereconciler

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/changefeed"
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
	c, err := r.follow()
	if err != nil {
		return err
	}
	defer c.close()
	return drift.Compare(ctx, r.Drift, func(txn statedb.ReadTxn) time.Duration {
		recheck := c.compare(txn, time.Now())
		health.OK("routes match the desired state")
		return recheck
	}, r.Table, r.Routes, r.Devices, r.Addresses)
}

// comparison compares only rows that have changed or whose observed route has changed, and all rows after a change of a device or an address. Each node may have
// a route.
type comparison struct {
	*repair
	rows      *changefeed.Feed[*desiredroutes.Route]
	routes    *changefeed.Feed[*devices.Route]
	due       map[string]struct{} // keys of the rows to compare
	tried     map[string]needs    // dependencies at the last attempt of failed rows, by key
	devicesTo statedb.Revision    // revisions of the last comparison
	addrsTo   statedb.Revision
}

// follow returns a comparison whose first round compares all rows.
func (r *repair) follow() (c *comparison, err error) {
	c = &comparison{repair: r, due: map[string]struct{}{}, tried: map[string]needs{}}
	txn := r.Drift.DB.WriteTxn(r.Table, r.Routes)
	defer txn.Commit()
	if c.rows, err = changefeed.Follow(txn, r.Table.ToTable()); err != nil {
		return nil, err
	}
	if c.routes, err = changefeed.Follow(txn, r.Routes); err != nil {
		c.rows.Close()
		return nil, err
	}
	return c, nil
}

func (c *comparison) close() {
	c.rows.Close()
	c.routes.Close()
}

// compare marks rows pending whose route must be written again. It returns the delay of the next check, 0 to wait for a change.
func (c *comparison) compare(txn statedb.ReadTxn, now time.Time) (recheck time.Duration) {
	c.collect(txn)
	keys := slices.Sorted(maps.Keys(c.due))
	recheck = c.mark(txn, keys, now)
	c.again(c.failed(txn, keys))
	return recheck
}

// collect adds the rows that must be compared to due. [drift.Compare] watches the tables.
func (c *comparison) collect(txn statedb.ReadTxn) {
	watched := statedb.NewWatchSet()
	for _, change := range c.rows.UpTo(txn, watched) {
		c.due[change.Object.Key()] = struct{}{}
	}
	for _, change := range c.routes.UpTo(txn, watched) {
		for _, key := range keysOf(change.Object) {
			c.due[key] = struct{}{}
		}
	}
	links, addrs := c.Devices.Revision(txn), c.Addresses.Revision(txn)
	if links == c.devicesTo && addrs == c.addrsTo {
		return
	}
	c.devicesTo, c.addrsTo = links, addrs
	for row := range c.Table.All(txn) {
		c.due[row.Key()] = struct{}{}
	}
}

// keysOf returns the keys of the rows that an observed route may belong to. In IPv6 the default metric has two.
func keysOf(have *devices.Route) []string {
	row := desiredroutes.Route{Table: have.Table, Dst: have.Dst, Metric: have.Priority}
	keys := []string{row.Key()}
	if row.Metric = 0; row.Priority() == have.Priority && have.Priority != 0 {
		keys = append(keys, row.Key())
	}
	return keys
}

// of returns the rows with these keys.
func (c *comparison) of(txn statedb.ReadTxn, keys []string) iter.Seq2[*desiredroutes.Route, statedb.Revision] {
	return func(yield func(*desiredroutes.Route, statedb.Revision) bool) {
		for _, key := range keys {
			if row, revision, found := c.Table.Get(txn, desiredroutes.ByKey(key)); found && !yield(row, revision) {
				return
			}
		}
	}
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

// failed returns those of the rows that have failed and that were not tried since their device or source address was added or changed. A row may fail
// after the change was observed, so tried has the dependencies of the last attempt for each row.
func (c *comparison) failed(txn statedb.ReadTxn, keys []string) (rows []*desiredroutes.Route) {
	for row := range c.of(txn, keys) {
		switch row.Status.Kind {
		case reconciler.StatusKindError:
			if n := c.needs(txn, row); n.index != 0 && c.tried[row.Key()] != n {
				c.tried[row.Key()] = n
				rows = append(rows, row)
			}
		case reconciler.StatusKindDone:
			delete(c.tried, row.Key())
		}
	}
	return rows
}

// mark marks those of the rows pending that are Done and not observed in the kernel. It returns the delay of the next check, 0 to wait for a change. Only rows
// that must be checked again stay due.
func (c *comparison) mark(txn statedb.ReadTxn, keys []string, now time.Time) (recheck time.Duration) {
	if ok, _ := c.Routes.Initialized(txn); !ok {
		return 0
	}
	c.due = map[string]struct{}{} // a map that has grown does not shrink
	drift.MarkSome(c.Drift, c.Table, c.of(txn, keys), func(row *desiredroutes.Route) []driftrepairs.Finding {
		d, _, present := c.Devices.Get(txn, devices.ByName(row.Device))
		if present && c.isObserved(txn, wanted(row, d.Index)) {
			return nil
		}
		if age := now.Sub(row.Status.UpdatedAt); age < drift.Grace {
			recheck = max(recheck, drift.Grace-age)
			c.due[row.Key()] = struct{}{}
			return nil
		}
		return drift.If(true, driftrepairs.Route, row.Key(), c.found(txn, row))
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
