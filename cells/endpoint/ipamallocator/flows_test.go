package ipamallocator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
)

// withFlows gives the allocator the table of a collector of flows. It returns a function that records a pass over all maps.
func withFlows(t *testing.T, a *allocator) (pass func(maps ...string)) {
	t.Helper()
	table, err := conntrack.NewTable(a.db)
	if err != nil {
		t.Fatal(err)
	}
	a.flows = table
	return func(maps ...string) {
		txn := a.db.WriteTxn(table)
		defer txn.Commit()
		for _, name := range maps {
			if _, _, err := table.Insert(txn, conntrack.Map{Name: name, Began: time.Now()}); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestQuarantine_EndsOnlyAfterAPassOverAllFlows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, 30*time.Second)
		pass := withFlows(t, a)
		mustApply(t, a, "10.0.0.0/30", "") // one address besides the router
		runExpiry(t, a)
		one := mustNext(t, a, false)
		pass(conntrack.FlowMaps()...) // this pass began before the release: flows may have been added after its scan
		time.Sleep(time.Second)
		if _, err := a.Release(one.Addr, "", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := a.Next(t.Context(), ipam.Request{IPv4: true}); !errors.Is(err, ipam.ErrExhausted) {
			t.Fatalf("Next while flows may remain: %v", err)
		}
		pass(conntrack.FlowMaps()[1:]...)
		time.Sleep(2 * passRetry)
		if got := a.stateOf(one.Addr); got != "quarantined" {
			t.Errorf("while one map has not been looked through, the address is %q", got)
		}
		pass(conntrack.FlowMaps()...)
		time.Sleep(2 * passRetry)
		if got := a.stateOf(one.Addr); got != "" {
			t.Errorf("after a pass the address is %q", got)
		}
		mustNext(t, a, false)
	})
}

// An address in quarantine before a restart stays there until a pass of the new run has ended.
func TestQuarantine_EndsAfterARestartOnlyAfterAPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		before := startIPAM(t, dir, time.Second)
		before.RestoreDone()
		mustApply(t, before, "10.0.0.0/29", "")
		one := mustNext(t, before, false)
		if _, err := before.Release(one.Addr, "", ""); err != nil {
			t.Fatal(err)
		}
		a := startIPAM(t, dir, time.Second)
		pass := withFlows(t, a)
		a.RestoreDone()
		mustApply(t, a, "10.0.0.0/29", "")
		runExpiry(t, a)
		time.Sleep(time.Minute)
		if got := a.stateOf(one.Addr); got != "quarantined" {
			t.Errorf("without a pass the address is %q", got)
		}
		pass(conntrack.FlowMaps()...)
		time.Sleep(2 * passRetry)
		if got := a.stateOf(one.Addr); got != "" {
			t.Errorf("after a pass the address is %q", got)
		}
	})
}
