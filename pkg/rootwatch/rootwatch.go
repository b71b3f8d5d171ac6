// Package rootwatch saves memory in tables with a row for each pod or each Service of the cluster.
//
// A table of statedb keeps a watch channel of 112 bytes for each row and index, so that a reader can wait for a change of a single row. The trees of statedb have
// an option for a single channel ([part.RootOnlyWatch]), and the internal indexes of a table use it, but statedb.NewTable has no parameter for it. This package
// sets the option in a new table. It finds the option by the names of the fields that lead to it and compares its type, so a release of statedb with other fields
// makes [Only] fail, and with it all tests that make such a table.
package rootwatch

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/part"
)

// Only makes each index of a table keep a single watch channel. The channel that a query returns then closes after any change of its index: for the primary
// index after any change of the table, for another one after any change of a row with a key in this index. The table must be empty and must not be in use yet.
func Only(db *statedb.DB, table statedb.TableMeta) error {
	if n := table.NumObjects(db.ReadTxn()); n != 0 {
		return fmt.Errorf("table %s: has %d rows, want an empty table", table.Name(), n)
	}
	all, set := optionsOf(db, table), reflect.ValueOf(part.RootOnlyWatch)
	known := len(all) > 0 && set.Type().NumIn() == 1
	for _, options := range all {
		known = known && options.CanAddr() && set.Type().In(0) == reflect.PointerTo(options.Type())
	}
	if !known {
		return fmt.Errorf("table %s: the options of its indexes are not found in this release of statedb", table.Name())
	}
	for _, options := range all {
		set.Call([]reflect.Value{reflect.NewAt(options.Type(), unsafe.Pointer(options.UnsafeAddr()))}) //nolint:gosec // the type is compared above
	}
	return nil
}

// optionsOf returns the options of the trees of the primary index and of the other ones, each the zero Value if it is not found.
func optionsOf(db *statedb.DB, table statedb.TableMeta) (all []reflect.Value) {
	own, entries := reflect.ValueOf(table), reflect.Indirect(reflect.ValueOf(db.ReadTxn()))
	if own.Kind() != reflect.Pointer || entries.Kind() != reflect.Slice {
		return nil
	}
	for i := range entries.Len() {
		meta, indexes := field(entries.Index(i), "meta"), field(entries.Index(i), "indexes")
		if meta.Kind() != reflect.Interface || meta.Elem().Kind() != reflect.Pointer || meta.Elem().Pointer() != own.Pointer() {
			continue
		}
		if indexes.Kind() != reflect.Slice {
			break
		}
		for at := statedb.PrimaryIndexPos; at < indexes.Len(); at++ {
			all = append(all, field(field(indexes.Index(at), "tree"), "opts"))
		}
		break
	}
	return all
}

// field returns a field of a struct or of the struct behind pointers and interfaces, or the zero Value if there is none.
func field(v reflect.Value, name string) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByName(name)
}
