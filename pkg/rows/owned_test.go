package rows_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rows"
)

// acquisitions counts write transactions.
type acquisitions struct {
	statedb.Metrics
	count int
}

func (a *acquisitions) WriteTxnTotalAcquisition(handle string, tables []string, d time.Duration) {
	a.count++
	a.Metrics.WriteTxnTotalAcquisition(handle, tables, d)
}

// ownedRig is a table whose rows have the owner in Note. Rows are the same if their values are.
type ownedRig struct {
	rows.Owned[*row]
	write acquisitions
}

func newOwned(t *testing.T) *ownedRig {
	t.Helper()
	r := &ownedRig{write: acquisitions{Metrics: statedb.NewExpVarMetrics(false)}}
	db := statedb.New(statedb.WithMetrics(&r.write))
	byOwner := indexes.Shared("owner", indexes.String, func(r *row) string { return r.Note })
	table, err := statedb.NewTable(db, "rows", byKey, byOwner)
	if err != nil {
		t.Fatal(err)
	}
	r.Owned = rows.Owned[*row]{DB: db, Table: table, Key: func(r *row) string { return r.Key }, ByKey: byKey.Query,
		Owner: func(r *row) string { return r.Note }, ByOwner: byOwner.Query, Same: rows.Same[*row],
		Conflict: func(want, old *row) error { return fmt.Errorf("%s wants %s of %s", want.Note, want.Key, old.Note) }}
	return r
}

// list returns the rows of an owner, in the order of keys and values.
func list(owner string, keysAndValues ...string) (rows []*row) {
	for pair := range slices.Chunk(keysAndValues, 2) {
		rows = append(rows, &row{pair[0], pair[1], owner})
	}
	return rows
}

// expect compares the rows in the order of their revisions, and the error.
func (r *ownedRig) expect(t *testing.T, err error, wantErr string, want ...string) {
	t.Helper()
	got := ""
	if err != nil {
		got = strings.ReplaceAll(err.Error(), "\n", ", ")
	}
	if got != wantErr {
		t.Errorf("error %q, want %q", got, wantErr)
	}
	var rows []string
	for row := range r.Table.LowerBound(r.DB.ReadTxn(), statedb.ByRevision[*row](0)) {
		rows = append(rows, row.Note+" "+row.Key+row.Value)
	}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

func TestOwned_Replace_KeepsRowsOfOthers(t *testing.T) {
	t.Parallel()
	r := newOwned(t)
	r.expect(t, r.Replace("a", list("a", "z", "1", "x", "1")), "", "a z1", "a x1")
	r.expect(t, r.Replace("b", list("b", "y", "1", "x", "2", "z", "2", "w", "1")), "b wants x of a, b wants z of a", "a z1", "a x1", "b y1", "b w1")
	r.expect(t, r.Replace("a", list("a", "v", "1", "x", "2")), "", "b y1", "b w1", "a v1", "a x2")
	r.expect(t, r.Replace("b", list("b", "z", "2", "w", "1")), "", "b w1", "a v1", "a x2", "b z2")
	r.expect(t, r.Replace("a", list("a", "x", "3", "x", "4")), "", "b w1", "b z2", "a x4")
	r.expect(t, r.Replace("a", nil), "", "b w1", "b z2")
}

func TestOwned_Replace_OpensNoTransactionIfNothingChanges(t *testing.T) {
	t.Parallel()
	r := newOwned(t)
	steps := []struct {
		do      func() error
		commits int
	}{
		{func() error { r.Expect("a"); return nil }, 1},
		{func() error { return r.Replace("a", nil) }, 1}, // completes the initializer
		{func() error { return r.Replace("a", nil) }, 0},
		{func() error { return r.Replace("a", list("a", "x", "1", "y", "1")) }, 1},
		{func() error { return r.Replace("a", list("a", "y", "1", "x", "1")) }, 0},
		{func() error { return r.Replace("b", list("b", "z", "1")) }, 1},
		{func() error { return r.Replace("a", list("a", "x", "2", "x", "1", "y", "1")) }, 0}, // the last row with a key counts
		{func() error { return r.Replace("a", list("a", "x", "1", "y", "2")) }, 1},
		{func() error { return r.Replace("a", list("a", "x", "1")) }, 1},
	}
	for i, step := range steps {
		r.write.count = 0
		if err := step.do(); err != nil || r.write.count != step.commits {
			t.Errorf("step %d: %d write transactions, want %d; error %v", i, r.write.count, step.commits, err)
		}
	}
}

func TestOwned_Update_KeepsRowsOfOthers(t *testing.T) {
	t.Parallel()
	r := newOwned(t)
	r.expect(t, r.Update("a", list("a", "z", "1", "x", "1", "y", "1"), nil), "", "a z1", "a x1", "a y1")
	r.expect(t, r.Update("b", list("b", "w", "1", "z", "2"), []string{"x", "z", "none"}), "b wants z of a", "a z1", "a x1", "a y1", "b w1")
	r.expect(t, r.Update("a", list("a", "y", "2", "x", "1"), []string{"z", "y"}), "", "a x1", "b w1", "a y2")
}

func TestOwned_Expect_WaitsForReplaceOfEachOwner(t *testing.T) {
	t.Parallel()
	r := newOwned(t)
	for _, owner := range []string{"a", "b", "a"} {
		r.Expect(owner)
	}
	complete := func(want bool) {
		t.Helper()
		if done, _ := r.Table.Initialized(r.DB.ReadTxn()); done != want {
			t.Errorf("initialized: %t, want %t", done, want)
		}
	}
	r.expect(t, r.Update("a", list("a", "x", "1"), nil), "", "a x1")
	r.expect(t, r.Replace("c", nil), "", "a x1")
	r.expect(t, r.Replace("b", nil), "", "a x1")
	complete(false)
	r.expect(t, r.Replace("a", list("a", "x", "1")), "", "a x1") // the row is unchanged
	complete(true)
}
