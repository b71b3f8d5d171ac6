// Package drift marks rows whose part of the kernel is no longer what was written, so that their reconciler repairs it,
// and has each counted.
package drift

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// Watch is what a cell needs to find drift.
type Watch struct {
	DB      *statedb.DB
	Repairs driftrepairs.Writer
	// Interval is how often that is read back whose changes the kernel does not announce.
	Interval time.Duration
}

// Row is a row with a reconciler.
type Row[R any] interface {
	comparable
	Clone() R
	GetStatus() reconciler.Status
	WithStatus(reconciler.Status) R
}

// Mark makes pending each row at which look finds something, and has the findings counted. before must have been taken
// ahead of the look at the kernel: a row that changed since is left out, because the look may be older than the row. So
// are rows that were not written yet; their reconciler is at work. That is also why what the agent itself changes is never
// counted. When something was found at a row that was left out, again is true: its reconciler may have been there before
// it happened, so whoever looks because of an announcement has to look once more.
func Mark[R Row[R]](w Watch, table statedb.RWTable[R], before statedb.ReadTxn, look func(R) []driftrepairs.Finding) (again bool) {
	type candidate struct {
		row      R
		revision statedb.Revision
		findings []driftrepairs.Finding
	}
	var found []candidate
	for row, revision := range table.All(before) {
		kind := row.GetStatus().Kind
		if kind == reconciler.StatusKindError {
			continue // it is tried again in any case
		}
		findings := look(row)
		switch {
		case len(findings) == 0:
		case kind == reconciler.StatusKindDone:
			found = append(found, candidate{row, revision, findings})
		default:
			again = true
		}
	}
	if len(found) == 0 {
		return again
	}
	var findings []driftrepairs.Finding
	txn := w.DB.WriteTxn(table)
	for _, c := range found {
		pending := c.row.Clone().WithStatus(reconciler.StatusPending())
		if _, _, err := table.CompareAndSwap(txn, c.revision, pending); err != nil {
			again = true
		} else {
			findings = append(findings, c.findings...)
		}
	}
	txn.Commit()
	w.Repairs.Record(findings...)
	return again
}

// If is the finding when something is wrong, and none otherwise.
func If(wrong bool, kind driftrepairs.Kind, what, found string) []driftrepairs.Finding {
	if !wrong {
		return nil
	}
	return []driftrepairs.Finding{{Kind: kind, What: what, Found: found}}
}
