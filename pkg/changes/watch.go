package changes

import "github.com/cilium/statedb"

// Watch adds to changed what closes when rows of the tables change, and reports whether all of the tables are initialized; when one is not,
// changed also closes when it becomes so.
func Watch(txn statedb.ReadTxn, changed *statedb.WatchSet, tables ...statedb.TableMeta) bool {
	complete := true
	for _, t := range tables {
		done, initialized := t.Initialized(txn)
		if !done {
			complete = false
			changed.Add(initialized)
		}
		_, rows := statedb.AnyTable{Meta: t}.AllWatch(txn)
		changed.Add(rows)
	}
	return complete
}
