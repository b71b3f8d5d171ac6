package mapreconciler

import (
	"context"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// perRun is how many rows a run compares on the average. A larger map is read in every second or third run, so that an agent at rest in a large cluster
// stays within its budget of CPU time.
const perRun = 2000

// Check compares a map with the rows that were written to it. It reads the map as a whole, so it is for maps of some thousand entries. Its timer alone runs it.
type Check[R drift.Row[R], K comparable, V any] struct {
	Watch   drift.Watch
	Name    string // of the map
	Table   statedb.RWTable[R]
	Key     func(R) K
	Dump    func() (map[K]V, error)
	Differs func(have map[K]V, row R) string // how the entry of a row differs from it, or nothing
	Prune   func()                           // has entries removed that have no row

	left int // runs that are left out
}

// CheckOf checks a map that is written by a [Map].
func CheckOf[R drift.Row[R], K, V comparable](w drift.Watch, table statedb.RWTable[R], m Map[R, K, V], prune func()) Check[R, K, V] {
	return Check[R, K, V]{w, m.Name, table, m.Key, m.Entries.Dump, m.Differs, prune, 0}
}

// Run marks the rows that differ, and has entries removed that nobody wants.
func (c *Check[R, K, V]) Run(ctx context.Context) error {
	if c.left > 0 {
		c.left--
		return nil
	}
	before := c.Watch.DB.ReadTxn()
	have, err := c.Dump()
	if err != nil {
		return err
	}
	c.left = max(len(have)-1, 0) / perRun
	drift.Mark(c.Watch, c.Table, before, func(row R) []driftrepairs.Finding {
		found := c.Differs(have, row)
		return drift.If(found != "", driftrepairs.MapEntry, c.Name, found)
	})
	if strangers := c.strangers(before, have); len(strangers) > 0 {
		drift.Strangers(ctx, c.Watch, c.Name, strangers, c.still(), c.Prune)
	}
	return nil
}

// strangers are the entries without a row. It takes the others out of have.
func (c *Check[R, K, V]) strangers(txn statedb.ReadTxn, have map[K]V) (keys []K) {
	for row := range c.Table.All(txn) {
		delete(have, c.Key(row))
	}
	for key := range have {
		keys = append(keys, key)
	}
	return keys
}

// still tells whether an entry has no row now. It looks once, when it is first asked. Until the table is complete every entry
// may get a row.
func (c *Check[R, K, V]) still() func(K) bool {
	var now map[K]V
	looked := false
	return func(key K) bool {
		if !looked {
			looked = true
			txn := c.Watch.DB.ReadTxn()
			if complete, _ := c.Table.Initialized(txn); complete {
				if have, err := c.Dump(); err == nil {
					c.strangers(txn, have)
					now = have
				}
			}
		}
		_, found := now[key]
		return found
	}
}
