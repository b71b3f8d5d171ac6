package changefeed

import "github.com/cilium/statedb"

// Watch adds channels to changed that close when rows of the tables change, and reports whether all tables are initialized. For a table that is not,
// it also adds a channel that closes when the table becomes initialized.
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
