package mapreconciler

import (
	"context"
	"sync/atomic"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// perRun is the number of rows that a run compares on average. A larger map is read only in every second to sixth run, so that an idle agent in a large
// cluster stays within its budget of CPU time.
const perRun = 1000

// Check compares a map with the rows that were written to it. It reads the whole map, so it suits maps with some thousand entries.
type Check[R drift.Row[R], K comparable, V any] struct {
	Watch   drift.Watch
	Name    string // of the map
	Table   statedb.RWTable[R]
	Key     func(R) K
	Dump    func() (map[K]V, error)
	Differs func(have map[K]V, row R) string // describes the difference between a row and its entry; empty without one
	Prune   func()                           // triggers the removal of entries without a row

	left atomic.Int32 // number of runs to skip
}

// CheckOf returns the check of a map that a [Map] writes.
func CheckOf[R drift.Row[R], K, V comparable](w drift.Watch, table statedb.RWTable[R], m Map[R, K, V], prune func()) Check[R, K, V] {
	return Check[R, K, V]{Watch: w, Name: m.Name, Table: table, Key: m.Key, Dump: m.Entries.Dump, Differs: m.Differs, Prune: prune}
}

// Run marks rows pending whose entries differ, and triggers the removal of entries without a row. It is safe for concurrent use.
func (c *Check[R, K, V]) Run(ctx context.Context) error {
	if c.left.Add(-1) >= 0 {
		return nil
	}
	before := c.Watch.DB.ReadTxn()
	have, err := c.Dump()
	if err != nil {
		return err
	}
	c.left.Store(int32(max(len(have)-1, 0) / perRun))
	drift.Mark(c.Watch, c.Table, before, func(row R) []driftrepairs.Finding {
		found := c.Differs(have, row)
		return drift.If(found != "", driftrepairs.MapEntry, c.Name, found)
	})
	if unowned := c.unownedKeys(before, have); len(unowned) > 0 {
		drift.PruneUnowned(ctx, c.Watch, c.Name, unowned, c.still(), c.Prune)
	}
	return nil
}

// unownedKeys returns the keys of entries without a row. It deletes the other entries from have.
func (c *Check[R, K, V]) unownedKeys(txn statedb.ReadTxn, have map[K]V) (keys []K) {
	for row := range c.Table.All(txn) {
		delete(have, c.Key(row))
	}
	for key := range have {
		keys = append(keys, key)
	}
	return keys
}

// still returns a function that reports whether an entry still exists without a row. The function reads the table and the map once, at its first call. If the
// table is incomplete at that time, or the map cannot be read, the function always returns false.
func (c *Check[R, K, V]) still() func(K) bool {
	var now map[K]V
	looked := false
	return func(key K) bool {
		if !looked {
			looked = true
			txn := c.Watch.DB.ReadTxn()
			if complete, _ := c.Table.Initialized(txn); complete {
				if have, err := c.Dump(); err == nil {
					c.unownedKeys(txn, have)
					now = have
				}
			}
		}
		_, found := now[key]
		return found
	}
}
