package watchdog_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestFollow_TheFirstRows: a table whose first rows are not complete lags although no row is pending. Completing it wakes the watchers with the next
// step.
func TestFollow_TheFirstRows(t *testing.T) {
	t.Parallel()
	m, db := watchdog.NewMonitor(), statedb.New()
	table, err := newTable(db, "combs")
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	first := table.RegisterInitializer(txn, "first")
	_ = table.RegisterInitializer(txn, "all") // never completed
	txn.Commit()
	watchdog.Follow(watchdog.NewGroup(nil, m, cell.FullModuleID{"bees"}), table, (*comb).status, "first")
	expect := func(when string, want ...string) {
		t.Helper()
		if got := m.Lagging(db.ReadTxn()); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	insert := func(status reconciler.Status) {
		txn := db.WriteTxn(table)
		defer txn.Commit()
		_, _, _ = table.Insert(txn, &comb{Name: "wax", Status: status})
	}
	m.Step(time.Second, db.ReadTxn())
	expect("without rows", "the first rows of table combs")
	insert(reconciler.StatusPending())
	expect("with one", "row wax of table combs to be in the kernel")
	insert(reconciler.StatusDone())
	m.Step(time.Second, db.ReadTxn())
	expect("with one in the kernel", "the first rows of table combs")

	set := statedb.NewWatchSet()
	m.Watch(db.ReadTxn(), set)
	txn = db.WriteTxn(table)
	first(txn)
	txn.Commit()
	m.Step(time.Second, db.ReadTxn())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := set.Wait(ctx, 0); err != nil {
		t.Error("the first rows wake no waiting job")
	}
	expect("with all")
	insert(reconciler.StatusPending())
	expect("later, for a moment")
}
