// Package rows writes sets of rows to tables of statedb.
package rows

import (
	"fmt"
	"iter"
	"maps"

	"github.com/cilium/statedb"
)

// Replace makes rows of a table equal to want, by key. It deletes the rows in have whose key want lacks, and inserts the rows of want that have lacks or that
// differ, by same, from the row in have; equal rows stay as they are, with their status. The transaction must hold the lock of the table. The transaction of a
// failed Replace must be aborted.
func Replace[R any, K comparable](txn statedb.WriteTxn, table statedb.RWTable[R], have iter.Seq2[R, statedb.Revision], want map[K]R, key func(R) K, same func(old, want R) bool) error {
	left := maps.Clone(want)
	for old := range have {
		k := key(old)
		row, wanted := want[k]
		switch {
		case !wanted:
			if _, _, err := table.Delete(txn, old); err != nil {
				return fmt.Errorf("delete row %v of table %s: %w", k, table.Name(), err)
			}
		case same(old, row):
			delete(left, k)
		}
	}
	for k, row := range left {
		if _, _, err := table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert row %v into table %s: %w", k, table.Name(), err)
		}
	}
	return nil
}

// Put inserts a row unless the row that a query selects, which must be the row with the same key, is equal by same. It reports an error as [Replace] does.
func Put[R any](txn statedb.WriteTxn, table statedb.RWTable[R], query statedb.Query[R], row R, same func(old, want R) bool) error {
	if old, _, found := table.Get(txn, query); found && same(old, row) {
		return nil
	}
	if _, _, err := table.Insert(txn, row); err != nil {
		return fmt.Errorf("insert a row into table %s: %w", table.Name(), err)
	}
	return nil
}

// Equaler is a row that can be compared. Equal ignores the status.
type Equaler[R any] interface{ Equal(other R) bool }

// Same is the comparison of [Replace] and [Put] for rows with a method Equal.
func Same[R Equaler[R]](old, want R) bool { return old.Equal(want) }

// Identical is the comparison of [Replace] and [Put] for rows that are compared with ==.
func Identical[R comparable](old, want R) bool { return old == want }
