package servicemaps

import (
	"errors"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/drift"
)

// publish says of rows whether they are in force. Rows that have changed since are left alone: they come again.
func (c *controller) publish(rows []*backendRow, plans []*plan) {
	const most = 4096 // rows while which nobody else can write the tables
	for at := 0; at < max(len(rows), len(plans)); at += most {
		txn := c.DB.WriteTxn(c.Backends.Table, c.Frontends.Table)
		for _, r := range part(rows, at, most) {
			say(txn, c.Backends.Table, r.row, r.revision, r.err)
		}
		for _, p := range part(plans, at, most) {
			if !errors.Is(p.fatal, errLater) {
				say(txn, c.Frontends.Table, p.row, p.revision, c.again[p.key])
			}
		}
		txn.Commit()
	}
}

func part[T any](all []T, at, n int) []T {
	at = min(at, len(all))
	return all[at:min(at+n, len(all))]
}

// say writes the status of a row, unless it says so already.
func say[R drift.Row[R]](txn statedb.WriteTxn, table statedb.RWTable[R], row R, revision statedb.Revision, err error) {
	status := reconciler.StatusDone()
	if err != nil {
		status = reconciler.StatusError(err)
	}
	if have := row.GetStatus(); have.Kind == status.Kind && have.GetError() == status.GetError() {
		return
	}
	_, _, _ = table.CompareAndSwap(txn, revision, row.Clone().WithStatus(status))
}
