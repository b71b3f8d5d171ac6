// Package tables writes all tables of Kubernetes objects through one interface, for both sources.
package tables

import (
	"encoding/json"
	"fmt"
	"iter"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
)

// Table is one table of objects, independent of the type of its rows. The caller must pass rows of that type.
type Table interface {
	Name() string
	// Meta returns the table for opening a transaction.
	Meta() statedb.TableMeta
	// Initializer registers a producer. The caller calls the returned function when the producer is complete.
	Initializer(txn statedb.WriteTxn, producer string) func(statedb.WriteTxn)
	// Pending returns the producers that are not complete.
	Pending(statedb.ReadTxn) []string
	Get(txn statedb.ReadTxn, key string) (k8sobjects.Row, bool)
	All(statedb.ReadTxn) iter.Seq[k8sobjects.Row]
	Changed(statedb.ReadTxn) <-chan struct{}
	// Initialized reports whether all producers are complete, and returns a channel that closes when they are.
	Initialized(statedb.ReadTxn) (bool, <-chan struct{})
	// Share returns the equal row of the table. Without one it returns the given row, which then shares equal parts with the row of its key. The given row
	// must be new, because Share may change it.
	Share(statedb.ReadTxn, k8sobjects.Row) k8sobjects.Row
	// Put writes a row unless an equal one exists.
	Put(statedb.WriteTxn, k8sobjects.Row) error
	// Delete removes a row. A missing row is not an error.
	Delete(txn statedb.WriteTxn, key string) error
	// UID returns the UID of the row's object.
	UID(k8sobjects.Row) string
	// Decode decodes a row from JSON.
	Decode([]byte) (k8sobjects.Row, error)
}

// rowOf constrains rows to pointers with a key and a comparison.
type rowOf[S any] interface {
	*S
	Key() string
	Equal(*S) bool
}

type table[S any, T rowOf[S]] struct {
	statedb.RWTable[T]
	byKey func(string) statedb.Query[T]
	uid   func(T) string
}

func newTable[S any, T rowOf[S]](t statedb.RWTable[T], byKey func(string) statedb.Query[T], uid func(T) string) Table {
	return &table[S, T]{t, byKey, uid}
}

func (t *table[S, T]) Meta() statedb.TableMeta { return t.RWTable }

func (t *table[S, T]) Initializer(txn statedb.WriteTxn, producer string) func(statedb.WriteTxn) {
	return t.RegisterInitializer(txn, producer)
}

func (t *table[S, T]) Pending(txn statedb.ReadTxn) []string { return t.PendingInitializers(txn) }

func (t *table[S, T]) Get(txn statedb.ReadTxn, key string) (k8sobjects.Row, bool) {
	row, _, ok := t.RWTable.Get(txn, t.byKey(key))
	return row, ok
}

func (t *table[S, T]) All(txn statedb.ReadTxn) iter.Seq[k8sobjects.Row] {
	return func(yield func(k8sobjects.Row) bool) {
		for row := range t.RWTable.All(txn) {
			if !yield(row) {
				return
			}
		}
	}
}

func (t *table[S, T]) Changed(txn statedb.ReadTxn) <-chan struct{} {
	_, changed := t.AllWatch(txn)
	return changed
}

func (t *table[S, T]) Share(txn statedb.ReadTxn, r k8sobjects.Row) k8sobjects.Row {
	row, ok := r.(T)
	if !ok {
		return r
	}
	old, _, ok := t.RWTable.Get(txn, t.byKey(row.Key()))
	switch sharing, able := any(row).(interface{ Replaces(T) }); {
	case !ok:
	case row.Equal(old):
		return old
	case able:
		sharing.Replaces(old)
	}
	return row
}

func (t *table[S, T]) Put(txn statedb.WriteTxn, r k8sobjects.Row) error {
	row, ok := r.(T)
	if !ok {
		return fmt.Errorf("insert %s into %s: it is a %T", r.Key(), t.Name(), r)
	}
	if old, _, ok := t.RWTable.Get(txn, t.byKey(row.Key())); ok && (row == old || row.Equal(old)) {
		return nil
	}
	if _, _, err := t.Insert(txn, row); err != nil {
		return fmt.Errorf("insert %s into %s: %w", row.Key(), t.Name(), err)
	}
	return nil
}

func (t *table[S, T]) Delete(txn statedb.WriteTxn, key string) error {
	old, _, ok := t.RWTable.Get(txn, t.byKey(key))
	if !ok {
		return nil
	}
	if _, _, err := t.RWTable.Delete(txn, old); err != nil {
		return fmt.Errorf("delete %s from %s: %w", key, t.Name(), err)
	}
	return nil
}

func (t *table[S, T]) UID(r k8sobjects.Row) string {
	if row, ok := r.(T); ok {
		return t.uid(row)
	}
	return ""
}

func (t *table[S, T]) Decode(text []byte) (k8sobjects.Row, error) {
	row := T(new(S))
	decode := func(text []byte) error { return json.Unmarshal(text, row) }
	if own, ok := any(row).(json.Unmarshaler); ok {
		decode = own.UnmarshalJSON
	}
	if err := decode(text); err != nil {
		return nil, fmt.Errorf("decode a row of %s: %w", t.Name(), err)
	}
	k8sobjects.InternRow(row)
	return row, nil
}
