package masquerade

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// registerVerify runs the verifier on a timer. The maps are small, so each time they are read as a whole.
func registerVerify(jobs job.Group, v *verifier) {
	heartbeat.AddTimer(jobs, "verify-netdevs", v.run, v.watch.Interval)
}

func (v *verifier) run(ctx context.Context) error {
	return errors.Join(v.netdevs.run(ctx), v.exclusions.run(ctx))
}

// look compares one map with the rows that were written.
type look[R drift.Row[R], K, V comparable] struct {
	watch drift.Watch
	table statedb.RWTable[R]
	ops   ops[R, K, V]
	prune func()
}

// run marks the rows that differ, and has entries removed that nobody wants.
func (l look[R, K, V]) run(ctx context.Context) error {
	before := l.watch.DB.ReadTxn()
	have, err := l.ops.entries.Dump()
	if err != nil {
		return err
	}
	drift.Mark(l.watch, l.table, before, func(row R) []driftrepairs.Finding {
		key, want := l.ops.entry(row)
		v, there := have[key]
		found := fmt.Sprintf("%v has another value", key)
		if !there {
			found = fmt.Sprintf("%v is missing", key)
		}
		return drift.If(!there || v != want, driftrepairs.MapEntry, l.ops.name, found)
	})
	drift.Strangers(ctx, l.watch, l.ops.name, l.strangers(before, have), l.nobodys, l.prune)
	return nil
}

// strangers are the entries without a row.
func (l look[R, K, V]) strangers(txn statedb.ReadTxn, have map[K]V) (keys []K) {
	for row := range l.table.All(txn) {
		key, _ := l.ops.entry(row)
		delete(have, key)
	}
	for key := range have {
		keys = append(keys, key)
	}
	return keys
}

// nobodys tells whether an entry is there and has no row. Until the table is complete every entry may get one.
func (l look[R, K, V]) nobodys(key K) bool {
	txn := l.watch.DB.ReadTxn()
	if complete, _ := l.table.Initialized(txn); !complete {
		return false
	}
	for row := range l.table.All(txn) {
		if k, _ := l.ops.entry(row); k == key {
			return false
		}
	}
	have, err := l.ops.entries.Dump()
	_, there := have[key]
	return err == nil && there
}
