package ctgc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/backendcheck"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// A flow whose backend is gone ends at once, and a reply in flight still finds its entries. These entries are deleted later, unless the client has started a
// new flow to that backend in the meantime.
func TestDeleteServed_ReplyInFlight_KeepsEntries(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"gone": false, "back with another id": true} {
		synctest.Test(t, func(t *testing.T) {
			fake := newFake()
			begin := func(args ...string) {
				t.Helper()
				if _, err := fake.putPair(args); err != nil {
					t.Fatal(err)
				}
			}
			begin("UDP", "from-pod", "10.1.0.7:1000", "10.96.0.1:53", "10.1.0.7:1000", "10.1.0.21:53", "to-pod", "service=1", "backend=11")
			if _, err := fake.put([]string{"ct_est4", "UDP", "10.1.0.7:1000", "10.1.0.21:53"}); err != nil {
				t.Fatal(err)
			}
			var reverse natmap.Flow
			for _, f := range fake.nat {
				if f.Reply() {
					reverse = f
				}
			}
			own := fake.nat[reverse.Reverse]
			p := &pass{access: &access{kernel: fake, nat: fakeNat{fake}, served: &served{}}}
			var sum found
			wants := func(f natmap.Flow, gone bool, entries, flows int) {
				t.Helper()
				got, err := p.deleteServed(&f, &sum)
				if err != nil || got != gone || len(fake.nat) != entries || len(fake.flows["ct_est4"]) != flows {
					t.Errorf("%s: %v, %v with %d entries and %d flows left, want %v with %d and %d", name, got, err, len(fake.nat),
						len(fake.flows["ct_est4"]), gone, entries, flows)
				}
			}
			wants(own, true, 1, 1)
			wants(reverse, false, 1, 1)
			time.Sleep(replyTimeout / 2)
			wants(reverse, false, 1, 1)
			if again {
				next := own
				next.Backend = 12
				fake.nat[next.Key] = next
			}
			time.Sleep(replyTimeout / 2)
			if again {
				wants(reverse, false, 2, 1)
				return
			}
			wants(reverse, true, 0, 0)
			if sum.unserved != 2 || p.served.replies.forget() {
				t.Errorf("%s: %+v", name, sum)
			}
		})
	}
}

// Between the look-up of an entry and its deletion, a client starts a new flow with an existing backend: the flow stays, and is counted.
func TestDeleteServed_CountsKeptFlows(t *testing.T) {
	t.Parallel()
	fake := newFake()
	if _, err := fake.putPair([]string{"UDP", "from-pod", "10.1.0.7:1000", "10.96.0.1:53", "10.1.0.7:1000", "10.1.0.21:53", "to-pod", "service=1", "backend=11"}); err != nil {
		t.Fatal(err)
	}
	p := &pass{access: &access{kernel: fake, nat: fakeNat{fake}, served: &served{}}}
	for key, f := range fake.nat {
		if f.Reply() {
			continue
		}
		next := f
		next.Backend = 12
		fake.nat[key] = next
		var sum found
		if gone, err := p.deleteServed(&f, &sum); gone || err != nil || fake.nat[key] != next || sum.unserved != 0 {
			t.Errorf("%v, %v with %d counted as deleted; left is %+v", gone, err, sum.unserved, fake.nat[key])
		}
	}
}

// The tables become complete without services and backends and without a change of a row: previous flows are deleted at once.
func TestSweep_NoServices_DeletesPreviousFlows(t *testing.T) {
	t.Parallel()
	db, fake := statedb.New(), newFake()
	front, err1 := frontends.NewTable(db)
	back, err2 := backends.NewTable(db)
	of, err3 := services.NewTable(db)
	cache, err6 := ipcache.NewTable(db)
	table, err4 := conntrack.NewTable(db)
	_, err5 := fake.putPair([]string{"TCP", "from-pod", "10.1.0.7:1000", "10.96.0.1:80", "10.1.0.7:1000", "10.1.0.21:80", "to-pod",
		"service=1", "backend=11"})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(front, back)
	complete := []func(statedb.WriteTxn){front.RegisterInitializer(txn, "test"), back.RegisterInitializer(txn, "test")}
	txn.Commit()
	c := &access{kernel: fake, nat: fakeNat{fake}, db: db, table: table, signals: signalState{wake: make(chan struct{}, 1)},
		served: &served{tables: backendcheck.Tables{Frontends: front, Backends: back, Services: of, IPCache: cache}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	health, _ := cell.NewSimpleHealth()
	go func() { done <- c.sweep(ctx, health) }()
	left := func() int {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return len(fake.nat)
	}
	for _, one := range complete {
		time.Sleep(50 * time.Millisecond) // the sweep is waiting by now
		if n := left(); n != 2 {
			t.Errorf("before all are known %d entries are left", n)
		}
		txn := db.WriteTxn(front, back)
		one(txn)
		txn.Commit()
	}
	for begin := time.Now(); left() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d entries are left", left())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
