// Package changefeed reads all changes of a table up to a snapshot.
//
// A change iterator of statedb reads a snapshot only after its watch channel has closed, and the channel closes after the change
// is visible: a commit makes its rows visible in all tables at once and then closes the channels, table by table. A goroutine that
// wakes for one table and takes a snapshot may read rows in another table that the iterator of this table does not return yet. A
// controller that decides from both tables would ignore these rows. It could conclude, for instance, that all policies are known
// and that there are none.
package changefeed

import (
	"fmt"

	"github.com/cilium/statedb"
)

// Feed is the change feed of one table. It must be used by one goroutine only.
type Feed[R any] struct {
	table statedb.Table[R]
	rows  statedb.ChangeIterator[R]
	upTo  statedb.Revision // of the table: UpTo has returned all changes up to it
}

// Follow returns a feed whose first [Feed.UpTo] returns all existing rows. The transaction must hold the lock of the table.
func Follow[R any](txn statedb.WriteTxn, table statedb.Table[R]) (*Feed[R], error) {
	rows, err := table.Changes(txn)
	if err != nil {
		return nil, fmt.Errorf("follow the table %s: %w", table.Name(), err)
	}
	return &Feed[R]{table: table, rows: rows}, nil
}

// UpTo returns the changes up to a snapshot that it has not returned before, the last one of each row, and adds a channel to changed
// that closes when there are more. Each feed adds its own channel, so a caller that waits for several feeds can find the feed with
// changes. UpTo may wait until another goroutine has completed its commit, so txn must not be a write transaction of the table.
func (f *Feed[R]) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet) (list []statedb.Change[R]) {
	if revision := f.table.Revision(txn); revision > f.upTo {
		_, watch := f.rows.Next(txn)
		<-watch
		f.upTo = revision
	}
	rows, _ := f.rows.Next(txn)
	for change := range rows {
		list = append(list, change)
	}
	_, more := f.rows.Next(txn) // the first call after the last row returns the watch channel
	select {
	case <-more: // there are more changes already; then all iterators of statedb return the same closed channel
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

// Close ends the subscription. It has no effect on a nil feed.
func (f *Feed[R]) Close() {
	if f != nil {
		f.rows.Close()
	}
}
