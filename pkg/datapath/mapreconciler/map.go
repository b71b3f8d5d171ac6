package mapreconciler

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
)

// Map writes rows of type R to the entries of a map. It implements reconciler.Operations.
type Map[R any, K, V comparable] struct {
	Name    string // name of the map, for messages
	Entries Entries[K, V]
	Entry   func(R) (K, V)
}

// Key returns the key of a row's entry.
func (m Map[R, K, V]) Key(row R) K {
	key, _ := m.Entry(row)
	return key
}

// Update implements reconciler.Operations.
func (m Map[R, K, V]) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	key, v := m.Entry(row)
	if err := m.Entries.Put(key, v); err != nil {
		return fmt.Errorf("write %v to the map %s: %w", key, m.Name, err)
	}
	return nil
}

// Delete implements reconciler.Operations.
func (m Map[R, K, V]) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row R) error {
	return m.remove(m.Key(row))
}

func (m Map[R, K, V]) remove(key K) error {
	if err := m.Entries.Delete(key); err != nil {
		return fmt.Errorf("delete %v from the map %s: %w", key, m.Name, err)
	}
	return nil
}

// Prune implements reconciler.Operations. It owns all entries of the map.
func (m Map[R, K, V]) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[R, statedb.Revision]) error {
	have, err := m.Entries.Dump()
	if err != nil {
		return err
	}
	for row := range rows {
		delete(have, m.Key(row))
	}
	var errs []error
	for key := range have {
		errs = append(errs, m.remove(key))
	}
	return errors.Join(errs...)
}

// Differs describes the difference between a row and its entry; empty without one.
func (m Map[R, K, V]) Differs(have map[K]V, row R) string {
	key, want := m.Entry(row)
	v, found := have[key]
	return Difference(key, found, v == want)
}

// Difference describes the fault of the entry at key; empty without one.
func Difference[K any](key K, found, same bool) string {
	switch {
	case !found:
		return fmt.Sprintf("%v is missing", key)
	case !same:
		return fmt.Sprintf("%v has another value", key)
	}
	return ""
}
