package backendcheck

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// remainingTables is a table of pods and nodes that is not complete.
type remainingTables struct {
	Tables
	*testing.T
	db       *statedb.DB
	table    statedb.RWTable[*ipcache.Entry]
	complete func(statedb.WriteTxn)
}

func newRemainingTables(t *testing.T) *remainingTables {
	t.Helper()
	db := statedb.New()
	table, err := ipcache.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return &remainingTables{Tables{IPCache: table}, t, db, table, table.RegisterInitializer(txn, "test")}
}

func (r *remainingTables) change(change func(statedb.WriteTxn)) {
	txn := r.db.WriteTxn(r.table)
	defer txn.Commit()
	change(txn)
}

func (r *remainingTables) put(prefix string, source ipcache.Source) *ipcache.Entry {
	row := ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix(prefix), Source: source}, "test")
	r.change(func(txn statedb.WriteTxn) { _, _, _ = r.table.Insert(txn, row) })
	return row
}

// TestExists: only pods and nodes of the cluster exist, and all addresses do until these are known.
func TestExists(t *testing.T) {
	t.Parallel()
	r := newRemainingTables(t)
	r.put("10.1.0.21/32", ipcache.SourceRemote)
	r.put("10.1.1.0/24", ipcache.SourceRemote)
	r.put("198.51.100.3/32", ipcache.SourceGenerated)
	r.put("fd00::2/128", ipcache.SourceNode)
	r.put("fd00::3/128", ipcache.SourceLocal)
	for _, complete := range []bool{false, true} {
		if complete {
			r.change(r.complete)
		}
		for addr, want := range map[string]bool{"10.1.0.21": true, "::ffff:10.1.0.21": true, "10.1.1.7": false, "198.51.100.3": false, "fd00::2": true,
			"fd00::3": true, "fd00::4": false} {
			if got := r.Exists(r.db.ReadTxn(), netip.MustParseAddr(addr)); got != (want || !complete) {
				t.Errorf("%s: %t, complete: %t", addr, got, complete)
			}
		}
	}
}

// TestRemaining_EndsOnlyWithItsAddresses: other pods come all the time. The channel closes when an address is known not to exist, also if it has ended before it
// was added.
func TestRemaining_EndsOnlyWithItsAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, all := newRemainingTables(t), &Remaining{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		health, _ := cell.NewSimpleHealth()
		go func() { done <- all.Run(ctx, health, r.db, r.Tables) }()
		addr := netip.MustParseAddr("10.1.0.21")
		all.Add(addr) // before the first Begin
		wants := func(ended <-chan struct{}, want bool, when string) {
			t.Helper()
			for range 3 {
				r.put("10.1.0.22/32", ipcache.SourceRemote)
				time.Sleep(checkPause)
			}
			synctest.Wait()
			select {
			case <-ended:
				if !want {
					t.Errorf("%s: the address has ended", when)
				}
			default:
				if want {
					t.Errorf("%s: the address has not ended", when)
				}
			}
		}
		ended := all.Begin()
		all.Add(addr)
		wants(ended, false, "before pods are known")
		r.change(r.complete)
		wants(ended, true, "when pods are known")

		row := r.put("10.1.0.21/32", ipcache.SourceLocal)
		ended = all.Begin()
		all.Add(addr)
		wants(ended, false, "with a row")
		r.change(func(txn statedb.WriteTxn) { _, _, _ = r.table.Delete(txn, row) })
		wants(ended, true, "without a row")

		ended = all.Begin()
		wants(ended, false, "without addresses")
		all.Add(addr)
		all.Check(r.db.ReadTxn(), r.Tables)
		wants(ended, true, "when it ended before it was added")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
