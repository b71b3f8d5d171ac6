// Package changes reads what has changed in a table, up to a snapshot and not less.
//
// An iterator of statedb looks at a snapshot only after it was told of a change, and it is told a moment after everybody can see
// that: a commit makes its rows visible in all tables at once, and then wakes those who wait, table by table. Whoever is woken for
// one table and takes a snapshot may find in another, by looking, rows that its iterator does not hand over yet. A controller
// that makes one decision from both would decide without them: that all policies are known, for instance, and that there are none.
package changes

import (
	"fmt"

	"github.com/cilium/statedb"
)

// Feed follows one table. It is for one goroutine.
type Feed[R any] struct {
	table statedb.Table[R]
	rows  statedb.ChangeIterator[R]
	upTo  statedb.Revision // of the table: all up to here is handed over
}

// Follow begins with everything that exists: the first [Feed.UpTo] hands over all rows. The transaction has to hold the table.
func Follow[R any](txn statedb.WriteTxn, table statedb.Table[R]) (*Feed[R], error) {
	rows, err := table.Changes(txn)
	if err != nil {
		return nil, fmt.Errorf("follow the table %s: %w", table.Name(), err)
	}
	return &Feed[R]{table: table, rows: rows}, nil
}

// UpTo hands over all changes that a snapshot has and that were not handed over yet, of each row the last, and adds to changed
// what closes when there is more. No other feed adds the same channel, so whoever waits for several feeds can tell which of them has more. It may wait for the commit of somebody else to come to its end, so the snapshot must not be a
// transaction that writes to the table.
func (f *Feed[R]) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet) (list []statedb.Change[R]) {
	if revision := f.table.Revision(txn); revision > f.upTo {
		_, told := f.rows.Next(txn)
		<-told
		f.upTo = revision
	}
	rows, _ := f.rows.Next(txn)
	for change := range rows {
		list = append(list, change)
	}
	_, more := f.rows.Next(txn) // the first call after the last row says what to wait for
	select {
	case <-more: // there is more already; then all iterators of statedb return one channel that is closed
		more = closedChannel()
	default:
	}
	changed.Add(more)
	return list
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Close ends the subscription. That of nobody ends as well.
func (f *Feed[R]) Close() {
	if f != nil {
		f.rows.Close()
	}
}
