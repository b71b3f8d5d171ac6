package ipcachemaps

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// ledger records findings.
type ledger struct{ findings []driftrepairs.Finding }

func (l *ledger) Record(f ...driftrepairs.Finding) { l.findings = append(l.findings, f...) }

// large returns real maps with n addresses and n prefixes, all with rows and entries.
func large(t testing.TB, n int) (v *verifier, l *ledger) {
	t.Helper()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	all := celltest.Maps{}
	for _, name := range []string{bpf.MapIpcache, bpf.MapIpcachePrefixes} {
		specs[name].MaxEntries = max(specs[name].MaxEntries, uint32(2*n))
		m, err := ebpf.NewMap(specs[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		all[name] = m
	}
	db := statedb.New()
	table, err := ipcache.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	l = &ledger{}
	v = &verifier{watch: drift.Watch{DB: db, Repairs: l, Interval: time.Minute}, table: table, kernel: newKernel(all), prune: func() {}}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for i := range n {
		for _, p := range []netip.Prefix{numbered(i, 32), numbered(i, 30)} {
			row := ipcache.NewEntry(ipcache.Claim{Prefix: p, Identity: uint32(i + 1)}, "").WithStatus(reconciler.StatusDone())
			_, _, _ = table.Insert(txn, row)
			if err := v.kernel.Put(p, v.nodes.value(txn, row, value{}), netip.Addr{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v, l
}

// numbered returns the i-th prefix of a length; prefixes of different numbers do not overlap.
func numbered(i, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 14), byte(i >> 6), byte(i << 2)}), bits)
}

// Maps that are larger than a slice are verified completely over several runs, and then again from the start.
func TestPrivilegedVerifier_SlicesReachEveryEntry(t *testing.T) {
	t.Parallel()
	const n = 2*slice + slice/2
	v, l := large(t, n)
	rounds := 2*n/slice + 2
	pass := func() {
		for range rounds {
			if err := v.run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	pass()
	if len(l.findings) > 0 {
		t.Fatalf("found %v in correct maps", l.findings)
	}
	unowned := netip.MustParsePrefix("192.0.2.0/24")
	for range 2 { // the second time the cursors are in the middle of the maps
		l.findings = nil
		changed, gone := numbered(n-1, 32), numbered(n/2, 30)
		if err := v.kernel.Put(changed, value{Identity: 1 << 20}, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
		if err := v.kernel.Delete(gone); err != nil {
			t.Fatal(err)
		}
		if err := v.kernel.Put(unowned, value{Identity: 7}, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
		pruned := false
		v.prune = func() { pruned = true; _ = v.kernel.Delete(unowned) }
		pass()
		want := map[string]bool{changed.String() + " has another value": true, gone.String() + " is missing": true,
			unowned.String() + " has no owner": true}
		for _, f := range l.findings {
			delete(want, f.Found)
		}
		if len(want) > 0 || !pruned {
			t.Errorf("not found: %v, pruned: %v; found %v", want, pruned, l.findings)
		}
		v.settle(t, changed, gone)
	}
}

// settle writes entries like the reconciler.
func (v *verifier) settle(t *testing.T, prefixes ...netip.Prefix) {
	t.Helper()
	txn := v.watch.DB.WriteTxn(v.table)
	defer txn.Commit()
	for _, p := range prefixes {
		row, _, _ := v.table.Get(txn, ipcache.ByPrefix(p))
		if row.GetStatus().Kind != reconciler.StatusKindPending {
			t.Errorf("the row of %s is not pending", p)
		}
		if err := v.kernel.Put(p, v.nodes.value(txn, row, value{}), netip.Addr{}); err != nil {
			t.Fatal(err)
		}
		_, _, _ = v.table.Insert(txn, row.Clone().WithStatus(reconciler.StatusDone()))
	}
}

// BenchmarkPrivilegedVerifier measures one run of the timer with 400,000 entries.
func BenchmarkPrivilegedVerifier(b *testing.B) {
	v, _ := large(b, 200_000)
	for b.Loop() {
		if err := v.run(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
