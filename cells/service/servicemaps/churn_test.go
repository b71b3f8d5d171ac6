package servicemaps

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// TestModel_Churn changes rows at random, makes map writes fail, restarts, and damages entries. A concurrent reader finds only complete entries that some
// version of the rows has requested; after the last change the maps equal the rows.
func TestModel_Churn(t *testing.T) {
	t.Parallel()
	for round := range 60 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, newFakes(200, 600, 12))
			m.watch()
			m.full = round%2 == 1
			a := m.restart(true)
			failing := round%3 == 1
			m.partial = failing
			for range 60 {
				m.change(a)
				if failing {
					m.fakes.fail(func() bool { return m.random.IntN(8) == 0 })
				}
				m.now = m.now.Add(time.Duration(m.random.IntN(700)) * time.Millisecond)
				a.step(m.now)
				if m.random.IntN(10) == 0 {
					m.now = m.now.Add(quarantine) // a process does not restart faster
					a = m.restart(true)
				}
			}
			m.fakes.fail(nil)
			m.now = m.now.Add(maxRetry)
			m.settle(a)
			m.check(a)

			before := m.fakes.writes()
			m.now = m.now.Add(quarantine)
			a = m.restart(true)
			m.settle(a)
			m.check(a)
			if n := m.fakes.writes() - before; n != 0 {
				t.Fatalf("a restart with nothing changed has written %d times", n)
			}
		})
	}
}

// TestModel_Drift changes all kinds of entries behind the agent. A verification finds and repairs each.
func TestModel_Drift(t *testing.T) {
	t.Parallel()
	m := newModel(t, newFakes(200, 600, 12))
	a := m.restart(true)
	for i := 0; i < 80 || len(m.backs) < 2; i++ { // a table requires two
		m.change(a)
	}
	txn := a.DB.WriteTxn(a.Frontends.Table)
	all := m.front(50)
	all.Backends = slices.Sorted(maps.Keys(m.backs))
	all.Outside, all.Maglev, all.Affinity, all.Ranges = true, true, 7, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	m.insertFront(txn, a, all)
	txn.Commit()
	m.settle(a)
	m.check(a)
	f := m.fakes
	for what, damage := range map[string]func() bool{
		"missing entry":        func() bool { return lose(f.services) },
		"an entry has changed": func() bool { return spoil(f.services, func(s *bpf.Service) { s.Count += 3 }) },
		"unowned entry": func() bool {
			f.services.entries[bpf.NewServiceKey(frontAddress(99), 0)] = bpf.Service{Id: 7}
			return true
		},
		"missing backend":       func() bool { return lose(f.backends) },
		"a backend has changed": func() bool { return spoil(f.backends, func(b *bpf.Backend) { b.Port++ }) },
		"unowned backend":       func() bool { f.backends.entries[9999] = bpf.Backend{}; return true },
		"a slot has changed": func() bool {
			return m.spoilSlot(f.slots, func(s bpf.Service) (uint32, uint32) { return s.First, s.Count })
		},
		"a table has changed": func() bool {
			return m.spoilSlot(f.maglev, func(s bpf.Service) (uint32, uint32) { return s.Maglev, s.MaglevSize })
		},
		"missing member":         func() bool { return lose(f.members) },
		"a member has lost both": func() bool { return spoil(f.members, func(scopes *uint32) { *scopes = 0 }) },
		"a member has more":      func() bool { return spoil(f.members, func(scopes *uint32) { *scopes |= 4 }) },
		"unowned member":         func() bool { f.members.entries[bpf.AffinityMember{Service: 1}] = 1; return true },
		"missing source range":   func() bool { return lose(f.ranges) },
		"unowned source range": func() bool {
			f.ranges.entries[bpf.NewSourceRangeKey(1, bpf.SourceRange{Prefix: privatePrefix})] = 1
			return true
		},
	} {
		t.Run(what, func(t *testing.T) {
			m.t = t
			if !damage() {
				t.Fatal("there is none to damage")
			}
			a.found = nil
			a.verify(a.DB.ReadTxn())
			if a.unread != nil {
				t.Fatal(a.unread)
			}
			m.now = m.now.Add(time.Millisecond)
			m.settle(a)
			if len(a.found) == 0 {
				t.Error("nothing was found")
			}
			m.check(a)
			a.found = nil
			if a.verify(a.DB.ReadTxn()); a.unread != nil || len(a.found) > 0 {
				t.Errorf("after the repair: %v, %v", a.found, a.unread)
			}
		})
	}
}

// TestModel_DriftWhileOtherRowsFail has a row for which there are too few slots, with growing retry intervals, and removes the entry of another row and a backend.
// Their repair does not wait for the first row.
func TestModel_DriftWhileOtherRowsFail(t *testing.T) {
	t.Parallel()
	m := newModel(t, newFakes(200, 1, 12))
	a := m.restart(true)
	insert(a, 0, 2)
	for range 5 {
		m.now = m.now.Add(a.step(m.now))
	}
	status := func(i int) reconciler.Status {
		row, _, _ := a.Frontends.Table.Get(a.DB.ReadTxn(), frontends.ByAddress(frontAddress(i)))
		return row.Status
	}
	if status(0).Kind != reconciler.StatusKindDone || !strings.Contains(status(1).GetError(), "raise --bpf-lb-map-max") {
		t.Fatalf("%s, %s", status(0), status(1))
	}
	if !lose(m.fakes.services) || !lose(m.fakes.backends) {
		t.Fatal("there is nothing to lose")
	}
	a.verify(a.DB.ReadTxn())
	a.step(m.now.Add(-time.Nanosecond))
	if n := len(a.found); n != 2 || len(m.fakes.services.entries) != 1 || len(m.fakes.backends.entries) != 2 {
		t.Errorf("%d findings, and the maps hold %v and %v", n, m.fakes.services.entries, m.fakes.backends.entries)
	}
}

// TestModel_RetriesWhileOtherRowsChange makes a write fail while other rows change continuously. The retry is not delayed by these changes.
func TestModel_RetriesWhileOtherRowsChange(t *testing.T) {
	t.Parallel()
	m := newModel(t, newFakes(200, 600, 12))
	a := m.restart(true)
	began := m.now
	m.fakes.services.fail(func() bool { return m.now.Sub(began) < time.Second })
	insert(a, 0, 1)
	for i := range 60 {
		a.step(m.now)
		m.now = m.now.Add(50 * time.Millisecond)
		txn := a.DB.WriteTxn(a.Frontends.Table)
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 2, Kind: frontends.ClusterIP, Service: "ns/s",
			Backends: []uint32{1}, LocalOnly: i%2 == 0, Status: reconciler.StatusPending()})
		txn.Commit()
	}
	if _, found := m.fakes.services.entries[bpf.NewServiceKey(frontAddress(0), bpf.ScopeExternal)]; !found {
		t.Error("3 s after it failed, and 2 s after writes succeed, the first entry is not there: other rows changed every 50 ms")
	}
}

// lose removes an arbitrary entry.
func lose[K comparable, V any](f *fake[K, V]) bool {
	for key := range f.entries {
		delete(f.entries, key)
		return true
	}
	return false
}

// spoil changes an arbitrary entry.
func spoil[K comparable, V any](f *fake[K, V], change func(*V)) bool {
	for key, value := range f.entries {
		change(&value)
		f.entries[key] = value
		return true
	}
	return false
}

// spoilSlot changes an element of an array that an entry names.
func (m *model) spoilSlot(f *fake[uint32, uint32], run func(bpf.Service) (first, n uint32)) bool {
	for _, s := range m.fakes.services.entries {
		if first, n := run(s); n > 0 {
			f.entries[first+n-1]++
			return true
		}
	}
	return false
}

// TestModel_FullMaps uses maps that are too small. Nothing in force is lost, rows that fit come into force, statuses name the flag, and when other rows are
// removed all rows come into force.
func TestModel_FullMaps(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, newFakes(200, 600, 12))
			f := m.fakes
			m.watch()
			if m.full = round%2 == 1; m.full {
				f.slots.size = 24
			}
			a := m.restart(true)
			m.partial = true
			for range 40 {
				before := maps.Clone(m.backs)
				m.change(a)
				m.now = m.now.Add(quarantine)
				a.step(m.now)
				m.onlyExisting(before)
				f.services.size, f.members.size, f.ranges.size = m.capacity(len(f.services.entries)), m.capacity(len(f.members.entries)), m.capacity(len(f.ranges.entries))
				f.backends.size = m.capacity(len(f.backends.entries))
			}
			for range 2 { // rows that wait for quarantined slots get them or fail
				m.now = m.now.Add(quarantine)
				a.step(m.now)
				m.onlyExisting(nil)
			}
			for _, x := range a.writer.left.again.rows {
				if text := x.err.Error(); !strings.Contains(text, "raise --bpf-lb-") && !strings.Contains(text, "is not in the map backends") {
					t.Errorf("no remedy in: %s", text)
				}
			}
			for row := range a.Frontends.Table.All(a.DB.ReadTxn()) {
				if bad := row.Status.Kind == reconciler.StatusKindError; bad != (a.writer.left.again.rows[bpf.NewServiceKey(row.Address, 0)].err != nil) {
					t.Errorf("%s is %s", row.Address, row.Status)
				}
			}
			rejected := uint64(0)
			for _, u := range a.writer.known.usage() {
				rejected += u.Refused
			}
			if len(a.writer.left.again.rows) > 0 && rejected == 0 {
				t.Errorf("%d rows are not in force, and nothing counts as refused", len(a.writer.left.again.rows))
			}
			f.services.size, f.members.size, f.ranges.size, f.backends.size = 200, 200, 200, 200
			m.now = m.now.Add(maxRetry)
			if m.full {
				f.slots.size, m.full = 600, false
				a = m.restart(true)
			}
			m.settle(a)
			m.check(a)
		})
	}
}

// onlyExisting checks that no entry names a backend whose row was removed, except those of a set, whose rows were removed in this round: a row may wait for
// quarantined slots.
func (m *model) onlyExisting(set map[uint32]*backends.Backend) {
	m.t.Helper()
	for key, s := range m.fakes.services.entries {
		for _, id := range m.fakes.list(s) {
			if m.backs[id] == nil && set[id] == nil {
				m.t.Fatalf("%v: backend %d has no row", key, id)
			}
		}
	}
}

func (m *model) capacity(now int) int { return max(now, 3) + m.random.IntN(2) }
