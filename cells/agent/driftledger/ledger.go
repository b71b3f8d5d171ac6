package driftledger

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

const (
	// maxRows limits the table: pods are added and removed, and each may need repairs.
	maxRows = 256
	// inARow is the maximum time between two consecutive repairs of an object.
	inARow = time.Minute
)

// ledger implements driftrepairs.Writer. The write transaction of the table orders its callers.
type ledger struct {
	db    *statedb.DB
	table statedb.RWTable[driftrepairs.Repair]
	now   func() time.Time
}

// Record implements driftrepairs.Writer.
func (l *ledger) Record(findings ...driftrepairs.Finding) {
	if len(findings) == 0 {
		return
	}
	now := l.now()
	txn := l.db.WriteTxn(l.table)
	defer txn.Commit()
	for _, f := range findings {
		row := driftrepairs.Repair{Kind: f.Kind, What: f.What}
		old, _, found := l.table.Get(txn, driftrepairs.ByKey(row.Key()))
		if found {
			row = old
		}
		for !found && l.table.NumObjects(txn) >= maxRows {
			l.forgetOldest(txn)
		}
		if now.Sub(row.Last) > inARow {
			row.Row = 0
		}
		row.Count, row.Row, row.Last, row.Found = row.Count+1, row.Row+1, now, f.Found
		_, _, _ = l.table.Insert(txn, row)
	}
}

// forgetOldest frees a row: it adds the least recently repaired object to the row of the others of its kind, so that no
// count is lost.
func (l *ledger) forgetOldest(txn statedb.WriteTxn) {
	var oldest driftrepairs.Repair
	for row := range l.table.All(txn) {
		if row.What != driftrepairs.Others && (oldest.Last.IsZero() || row.Last.Before(oldest.Last)) {
			oldest = row
		}
	}
	_, _, _ = l.table.Delete(txn, oldest)
	others := driftrepairs.Repair{Kind: oldest.Kind, What: driftrepairs.Others}
	if old, _, found := l.table.Get(txn, driftrepairs.ByKey(others.Key())); found {
		others = old
	}
	others.Count, others.Last, others.Found = others.Count+oldest.Count, oldest.Last, oldest.Found
	_, _, _ = l.table.Insert(txn, others)
}
