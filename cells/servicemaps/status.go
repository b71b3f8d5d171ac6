package servicemaps

import (
	"errors"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// publish says of rows whether they are in force. Rows that have changed since are left alone: they come again.
func (c *controller) publish(plans []*plan) {
	const most = 4096 // rows while which nobody else can write the table
	for some := range slices.Chunk(plans, most) {
		txn := c.DB.WriteTxn(c.Frontends.Table)
		for _, p := range some {
			if !errors.Is(p.fatal, errLater) {
				c.say(txn, p, c.again[p.key])
			}
		}
		txn.Commit()
		c.alive()
	}
}

// say writes the status of a row, unless it says so already.
func (c *controller) say(txn statedb.WriteTxn, p *plan, err error) {
	status := reconciler.StatusDone()
	if err != nil {
		status = reconciler.StatusError(err)
	}
	if have := p.row.Status; have.Kind == status.Kind && have.GetError() == status.GetError() {
		return
	}
	_, _, _ = c.Frontends.Table.CompareAndSwap(txn, p.revision, p.row.Clone().WithStatus(status))
}
