package masquerade

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
)

// ops pushes rows of type R into a map.
type ops[R any, K, V comparable] struct {
	name    string // of the map
	entries entries[K, V]
	entry   func(R) (K, V)
}

// Update implements reconciler.Operations.
func (o ops[R, K, V]) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	key, v := o.entry(row)
	if err := o.entries.Put(key, v); err != nil {
		return fmt.Errorf("write %v to the map %s: %w", key, o.name, err)
	}
	return nil
}

// Delete implements reconciler.Operations.
func (o ops[R, K, V]) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	key, _ := o.entry(row)
	return o.remove(key)
}

func (o ops[R, K, V]) remove(key K) error {
	if err := o.entries.Delete(key); err != nil {
		return fmt.Errorf("delete %v from the map %s: %w", key, o.name, err)
	}
	return nil
}

// Prune implements reconciler.Operations. All entries are ours.
func (o ops[R, K, V]) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[R, statedb.Revision]) error {
	have, err := o.entries.Dump()
	if err != nil {
		return err
	}
	for row := range rows {
		key, _ := o.entry(row)
		delete(have, key)
	}
	var errs []error
	for key := range have {
		errs = append(errs, o.remove(key))
	}
	return errors.Join(errs...)
}
