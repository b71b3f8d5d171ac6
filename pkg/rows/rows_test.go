package rows_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rows"
)

// row is a row of the test table. Rows are equal if their values are, whatever their notes.
type row struct{ Key, Value, Note string }

func (r *row) Equal(o *row) bool   { return r.Key == o.Key && r.Value == o.Value }
func (*row) TableHeader() []string { return []string{"Key", "Value"} }
func (r *row) TableRow() []string  { return []string{r.Key, r.Value} }

var byKey = indexes.Unique("key", indexes.String, func(r *row) string { return r.Key })

func TestReplace_KeepsEqualRows(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := statedb.NewTable(db, "rows", byKey)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	for _, r := range []*row{{"same", "1", "kept"}, {"other", "1", "old"}, {"removed", "1", "old"}, {"foreign", "1", "kept"}} {
		if _, _, err := table.Insert(txn, r); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	want := map[string]*row{"same": {"same", "1", "new"}, "other": {"other", "2", "new"}, "added": {"added", "1", "new"}}
	kept := maps.Clone(want)
	txn = db.WriteTxn(table)
	own := func(yield func(*row, statedb.Revision) bool) {
		for r, revision := range table.All(txn) {
			if r.Key != "foreign" && !yield(r, revision) {
				return
			}
		}
	}
	if err := rows.Replace(txn, table, own, want, func(r *row) string { return r.Key }, rows.Same[*row]); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	var got []string
	for r := range table.All(db.ReadTxn()) {
		got = append(got, r.Key+r.Value+" "+r.Note)
	}
	if want := []string{"added1 new", "foreign1 kept", "other2 new", "same1 kept"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !maps.Equal(want, kept) {
		t.Error("Replace changed its argument")
	}
}

func TestIdentical_ComparesAllFields(t *testing.T) {
	t.Parallel()
	a := row{"key", "1", "note"}
	if equal, other := a, (row{"key", "1", "other"}); !rows.Identical(a, equal) || rows.Identical(a, other) {
		t.Error("rows are not compared by all of their fields")
	}
}

func TestPut_KeepsAnEqualRow(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := statedb.NewTable(db, "rows", byKey)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	for _, r := range []*row{{"a", "1", "first"}, {"a", "1", "equal"}, {"b", "1", "first"}, {"b", "2", "other"}} {
		if err := rows.Put(txn, table, byKey.Query(r.Key), r, rows.Same); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	var got []string
	for r := range table.All(db.ReadTxn()) {
		got = append(got, r.Key+r.Value+" "+r.Note)
	}
	if want := []string{"a1 first", "b2 other"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
