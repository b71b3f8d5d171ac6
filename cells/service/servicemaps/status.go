package servicemaps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// publish writes the statuses of rows. For a row that has changed since, it only counts the revision: the next pass handles the row again.
func (c *controller) publish(plans []*plan) {
	const most = 4096 // rows in one transaction, which blocks other writers of the table
	for some := range slices.Chunk(plans, most) {
		txn := c.DB.WriteTxn(c.Frontends.Table)
		for _, p := range some {
			if !errors.Is(p.fatal, errLater) {
				c.writeStatus(txn, p, c.writer.left.again.rows[p.key].err)
			}
		}
		txn.Commit()
		c.writer.alive()
	}
}

// writeStatus writes the status of a row, unless it is unchanged.
func (c *controller) writeStatus(txn statedb.WriteTxn, p *plan, err error) {
	status := reconciler.StatusDone()
	if err != nil {
		status = reconciler.StatusError(err)
	}
	if have := p.row.Status; have.Kind == status.Kind && have.GetError() == status.GetError() && p.row.InForce == p.inForce() {
		return
	}
	row := p.row.Clone().WithStatus(status)
	if row.InForce = p.inForce(); row.InForce {
		row.Applied++
	}
	_, _, err = c.Frontends.Table.CompareAndSwap(txn, p.revision, row)
	if newer, _, found := c.Frontends.Table.Get(txn, frontends.ByAddress(p.row.Address)); err != nil && found && p.inForce() {
		newer = newer.Clone()
		newer.Applied++
		_, _, _ = c.Frontends.Table.Insert(txn, newer)
	}
}

// report reports the number of entries in force, or the problems.
func (c *controller) report(health cell.Health) {
	const most = 3
	if errs, n := c.writer.left.problems(most); len(errs) > 0 {
		health.Degraded(fmt.Sprintf("%d entries of services are out of date", n), errors.Join(errs...))
		return
	}
	if c.unread != nil {
		health.Degraded("the maps of services cannot be verified; changes by other writers are not repaired", c.unread)
		return
	}
	health.OK(fmt.Sprintf("entries of frontends: %d, of backends: %d", len(c.writer.known.entries), len(c.writer.known.backends)))
}

// account writes the rows of service-map-usage that differ from the previously written ones.
func (c *controller) account() {
	all := c.writer.known.usage()
	if slices.Equal(all, c.reported) {
		return
	}
	txn := c.DB.WriteTxn(c.Usage)
	defer txn.Commit()
	for i, u := range all {
		if c.reported == nil || c.reported[i] != u {
			_, _, _ = c.Usage.Insert(txn, u) // fails only if a row does not match the index
		}
	}
	c.reported = all
}
