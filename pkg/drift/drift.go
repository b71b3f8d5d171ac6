// Package drift marks rows whose part of the kernel is no longer what was written, so that their reconciler repairs it,
// and has each counted.
package drift

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

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

// Mark makes pending each row at which look finds something, has the findings counted, and returns how many rows there
// were. before must have been taken ahead of the look at the kernel: a row that changed since is left out, because the
// look may be older than the row. So are rows that were not written yet; their reconciler is at work. That is also why
// what the agent itself changes is never counted.
func Mark[R Row[R]](w Watch, table statedb.RWTable[R], before statedb.ReadTxn, look func(R) []driftrepairs.Finding) int {
	type candidate struct {
		row      R
		revision statedb.Revision
		findings []driftrepairs.Finding
	}
	var found []candidate
	for row, revision := range table.All(before) {
		if row.GetStatus().Kind != reconciler.StatusKindDone {
			continue
		}
		if findings := look(row); len(findings) > 0 {
			found = append(found, candidate{row, revision, findings})
		}
	}
	if len(found) == 0 {
		return 0
	}
	marked := 0
	var findings []driftrepairs.Finding
	txn := w.DB.WriteTxn(table)
	for _, c := range found {
		pending := c.row.Clone().WithStatus(reconciler.StatusPending())
		if _, _, err := table.CompareAndSwap(txn, c.revision, pending); err == nil {
			marked++
			findings = append(findings, c.findings...)
		}
	}
	txn.Commit()
	w.Repairs.Record(findings...)
	return marked
}

// If is the finding when something is wrong, and none otherwise.
func If(wrong bool, kind driftrepairs.Kind, what, found string) []driftrepairs.Finding {
	if !wrong {
		return nil
	}
	return []driftrepairs.Finding{{Kind: kind, What: what, Found: found}}
}

// NewPace limits a loop that looks at the kernel when something is announced: the first looks are at once, and somebody
// who changes things all the time causes five a second.
func NewPace() *rate.Limiter { return rate.NewLimiter(rate.Every(200*time.Millisecond), 5) }
