// Package drift detects rows whose kernel state differs from the written one. It marks these rows pending, so that their reconciler repairs them, and counts
// each repair.
package drift

import (
	"iter"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// Watch holds the dependencies of drift detection in a cell.
type Watch struct {
	DB      *statedb.DB
	Repairs driftrepairs.Writer
	// Interval is the time between two reads of kernel state without change notifications.
	Interval time.Duration
}

// Row is a row with a reconciler.
type Row[R any] interface {
	comparable
	Clone() R
	GetStatus() reconciler.Status
	WithStatus(reconciler.Status) R
}

// Mark marks a row pending when look returns findings for it, and records the findings. The caller must take the snapshot before ahead of reading the kernel:
// Mark skips rows that changed since, because the kernel state may be older than the row. It also skips rows that are not Done, because their reconciler is
// still at work. So changes by the agent itself are never counted. again is true when look returned findings for a skipped row that is not in the error
// state: the reconciler may have written the row before the drift happened, so a caller that reacts to a notification has to read again.
func Mark[R Row[R]](w Watch, table statedb.RWTable[R], before statedb.ReadTxn, look func(R) []driftrepairs.Finding) (again bool) {
	return MarkSome(w, table, table.All(before), look)
}

// MarkSome is [Mark] for some rows of the snapshot, with their revisions.
func MarkSome[R Row[R]](w Watch, table statedb.RWTable[R], rows iter.Seq2[R, statedb.Revision], look func(R) []driftrepairs.Finding) (again bool) {
	type candidate struct {
		row      R
		revision statedb.Revision
		findings []driftrepairs.Finding
	}
	var found []candidate
	for row, revision := range rows {
		kind := row.GetStatus().Kind
		if kind == reconciler.StatusKindError {
			continue // the reconciler retries it in any case
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

// If returns one finding when wrong is true, and none otherwise.
func If(wrong bool, kind driftrepairs.Kind, what, found string) []driftrepairs.Finding {
	if !wrong {
		return nil
	}
	return []driftrepairs.Finding{{Kind: kind, What: what, Found: found}}
}
