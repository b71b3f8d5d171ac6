package servicemaps

import (
	"errors"
	"slices"

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
				c.writeStatus(txn, p, c.again[p.key])
			}
		}
		txn.Commit()
		c.alive()
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
