// Package drift marks rows whose part of the kernel is no longer what was written, so that their reconciler repairs it.
package drift

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// Row is a row with a reconciler.
type Row[R any] interface {
	comparable
	Clone() R
	GetStatus() reconciler.Status
	WithStatus(reconciler.Status) R
}

// Mark makes pending each row of which differs says so, and returns how many there were. before must have been taken
// ahead of the look at the kernel: a row that changed since is left out, because the look may be older than the row. So
// are rows that were not written yet; their reconciler is at work.
func Mark[R Row[R]](db *statedb.DB, table statedb.RWTable[R], before statedb.ReadTxn, differs func(R) bool) int {
	type candidate struct {
		row      R
		revision statedb.Revision
	}
	var found []candidate
	for row, revision := range table.All(before) {
		if row.GetStatus().Kind == reconciler.StatusKindDone && differs(row) {
			found = append(found, candidate{row, revision})
		}
	}
	if len(found) == 0 {
		return 0
	}
	marked := 0
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for _, c := range found {
		pending := c.row.Clone().WithStatus(reconciler.StatusPending())
		if _, _, err := table.CompareAndSwap(txn, c.revision, pending); err == nil {
			marked++
		}
	}
	return marked
}
