package watchdog_test

import (
	"slices"
	"testing"

	"github.com/cilium/statedb/reconciler"
)

// TestLagging_BeforeTheFirstStep: once a complete table without a pending row is seen, a new row of a pod does not count, even before the first step of the
// monitor. Rows of an incomplete table still count.
func TestLagging_BeforeTheFirstStep(t *testing.T) {
	t.Parallel()
	m, db, table := unattended(t, false)
	w := &world{db: db, table: table}
	txn := db.WriteTxn(table)
	complete := table.RegisterInitializer(txn, "combs")
	txn.Commit()
	expect := func(when string, want ...string) {
		t.Helper()
		if got := m.Lagging(db.ReadTxn()); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	settle := func() {
		txn := db.WriteTxn(table)
		_, _, _ = table.Insert(txn, &comb{Name: "wax", Status: reconciler.StatusDone()})
		txn.Commit()
	}
	expect("without rows")
	w.insert("wax")
	expect("before the table is complete", "row wax of table combs to be in the kernel")
	txn = db.WriteTxn(table)
	complete(txn)
	txn.Commit()
	expect("with the first rows", "row wax of table combs to be in the kernel")
	settle()
	expect("with all rows in the kernel")
	w.insert("pod")
	expect("with a new row")
}
