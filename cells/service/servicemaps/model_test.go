package servicemaps

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/maglev"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
	"github.com/waggle-net/waggle/pkg/testseed"
)

var privatePrefix = netip.MustParsePrefix("10.0.0.0/8")

// ledger records findings.
type ledger []driftrepairs.Finding

func (l *ledger) Record(findings ...driftrepairs.Finding) { *l = append(*l, findings...) }

// agent is one run of the controller over its tables.
type agent struct {
	*controller
	found    ledger
	opened   *opened
	backs    statedb.RWTable[*backends.Backend]
	complete [2]func(statedb.WriteTxn)
}

func newAgent(t testing.TB, f *fakes) *agent {
	t.Helper()
	return newAgentOf(t, f.maps())
}

func newAgentOf(t testing.TB, all servicemap.Maps) *agent {
	t.Helper()
	seen := &opened{times: map[string]int{}}
	db := statedb.New(statedb.WithMetrics(seen))
	fronts, err1 := frontends.NewTable(db)
	backs, err2 := backends.NewTable(db)
	used, err3 := servicemapusage.NewTable(db)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	a := &agent{backs: backs, opened: seen}
	config := DefaultConfig
	config.NamespaceEntries = 0 // the maps are small, and most tests have one namespace
	c, err := newController(params{DB: db, Agent: agentconfig.Agent{MaglevTableSize: tableSize}, Config: config,
		Drift: drift.Watch{DB: db, Repairs: &a.found}, Maps: all, Frontends: frontends.NewStatuses(fronts), Backends: backs, Usage: used})
	if err != nil {
		t.Fatal(err)
	}
	a.controller = c
	txn := db.WriteTxn(fronts, backs)
	a.complete = [2]func(statedb.WriteTxn){fronts.RegisterInitializer(txn, "test"), backs.RegisterInitializer(txn, "test")}
	txn.Commit()
	if err := c.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.in.close() })
	return a
}

func (a *agent) completeTables() {
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	defer txn.Commit()
	for _, done := range a.complete {
		done(txn)
	}
}

// step makes one pass.
func (a *agent) step(now time.Time) time.Duration {
	return a.pass(a.DB.ReadTxn(), statedb.NewWatchSet(), now)
}

// model holds the current rows, and the entries that a reader of the maps may find.
type model struct {
	t        *testing.T
	random   *rand.Rand
	fakes    *fakes
	now      time.Time
	fronts   map[loadbalancer.Address]*frontends.Frontend
	backs    map[uint32]*backends.Backend
	ids      map[loadbalancer.Address]uint32 // of frontends
	nextBack uint32
	// lists are the backend lists that a key may have or have had.
	lists map[bpf.ServiceKey]map[string]bool
	// partial means that some parts of the rows cannot be written.
	partial bool
	// full means that slots of entries are overwritten: there are too few, or all lists of two or more backends count as long, see [inPlace].
	full bool
	// readers are entries that a program may have read less than a second ago, with the contents of their slots.
	readers []reader
}

type reader struct {
	until time.Time
	key   bpf.ServiceKey
	value bpf.Service
	list  []uint32
}

func backAddress(id uint32) loadbalancer.Address {
	return loadbalancer.Address{Addr: netip.AddrFrom4([4]byte{10, byte(id >> 16), byte(id >> 8), byte(id)}), Port: 8080, Protocol: loadbalancer.TCP}
}

func frontAddress(i int) loadbalancer.Address {
	return loadbalancer.Address{Addr: netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 80, Protocol: loadbalancer.TCP}
}

// watch checks each change of the maps.
func (m *model) watch() {
	f := m.fakes
	f.services.before = func(key bpf.ServiceKey, _ bpf.Service, _ bool) {
		if old, found := f.services.entries[key]; found {
			m.readers = append(m.readers, reader{m.now.Add(quarantine), key, old, f.list(old)})
		}
	}
	f.slots.before = func(at, _ uint32, _ bool) {
		own := m.owner(at)
		if s, found := f.services.entries[own]; found && m.full {
			m.readers = append(m.readers, reader{m.now.Add(quarantine), own, s, f.list(s)})
		}
		for _, r := range m.readers {
			now := f.services.entries[r.key]
			again := m.full && (own == r.key || own == bpf.ServiceKey{} && now.Count > 0 && now.First == r.value.First) // also the slots behind those of a shorter list
			if r.until.After(m.now) && r.value.First <= at && at < r.value.First+r.value.Count && !again {
				m.t.Fatalf("slot %d is written while a program may still read it", at)
			}
		}
	}
	f.maglev.before = func(at, _ uint32, _ bool) {
		for _, r := range m.readers {
			if r.until.After(m.now) && r.value.Maglev <= at && at < r.value.Maglev+r.value.MaglevSize {
				m.t.Fatalf("slot %d of Maglev is written while a program may still read it", at)
			}
		}
	}
	f.backends.before = func(id uint32, _ bpf.Backend, there bool) {
		for _, r := range m.readers {
			if !there && r.until.After(m.now) && slices.Contains(r.list, id) {
				m.t.Fatalf("backend %d is removed while a program may still read it", id)
			}
		}
	}
	f.services.after, f.backends.after, f.slots.after, f.maglev.after = m.sane, m.sane, m.sane, m.sane
	f.members.after, f.ranges.after = m.sane, m.sane
}

// owner returns the key of the entry that has a slot, the zero key if none has it.
func (m *model) owner(at uint32) bpf.ServiceKey {
	for key, s := range m.fakes.services.entries {
		if s.First <= at && at < s.First+s.Count {
			return key
		}
	}
	return bpf.ServiceKey{}
}

// sane checks every entry that a program could read now.
func (m *model) sane() {
	m.t.Helper()
	f := m.fakes
	for key, s := range f.services.entries {
		list := f.list(s)
		for _, id := range list {
			if b := f.backends.get(id); b != bpf.NewBackend(backAddress(id), b.Flags) {
				m.t.Fatalf("%v: backend %d is not there", key, id)
			}
			if member := (bpf.AffinityMember{Service: s.Id, Backend: id}); s.Flags&bpf.ServiceAffinity != 0 && !m.partial && f.members.get(member)>>key.Scope&1 == 0 {
				m.t.Fatalf("%v: backend %d is no member", key, id)
			}
		}
		for _, r := range m.readers {
			if r.until.After(m.now) && r.key != key && r.value.First < s.First+s.Count && s.First < r.value.First+r.value.Count {
				m.t.Fatalf("%v has slots that a program may still read as those of %v", key, r.key)
			}
		}
		if !m.had(key, list) {
			m.t.Fatalf("%v: it never had backends %v", key, list)
		}
		if s.Flags&bpf.ServiceMaglev != 0 {
			for at := s.Maglev; at < s.Maglev+s.MaglevSize; at++ {
				if id := f.maglev.get(at); m.full && f.backends.get(id) == (bpf.Backend{}) || !m.full && !slices.Contains(list, id) {
					m.t.Fatalf("%v: its table has backend %d, and it has %v", key, id, list)
				}
			}
		}
		if internal := key; s.Flags&bpf.ServiceTwoScopes != 0 {
			internal.Scope = bpf.ScopeInternal
			if _, found := f.services.entries[internal]; !found {
				m.t.Fatalf("%v: the other scope is not there", key)
			}
		}
	}
}

// had reports whether the rows have ever given a key these backends, or a superset of them if partial is set, or each of them if full is set.
func (m *model) had(key bpf.ServiceKey, list []uint32) bool {
	if m.full {
		all := strings.Join(slices.Collect(maps.Keys(m.lists[key])), "")
		return !slices.ContainsFunc(list, func(id uint32) bool { return !strings.Contains(all, keyOf([]uint32{id})) })
	}
	if m.lists[key][keyOf(list)] || !m.partial {
		return m.lists[key][keyOf(list)]
	}
	for text := range m.lists[key] {
		missing := slices.ContainsFunc(list, func(id uint32) bool { return !strings.Contains(text, keyOf([]uint32{id})) })
		if !missing {
			return true
		}
	}
	return false
}

// remember records the lists that a row allows.
func (m *model) remember(row *frontends.Frontend) {
	for scope, list := range [][]uint32{row.Backends, row.Internal} {
		key := bpf.NewServiceKey(row.Address, uint8(scope))
		if m.lists[key] == nil {
			m.lists[key] = map[string]bool{}
		}
		m.lists[key][keyOf(list)] = true
	}
}

// some selects backends at random.
func (m *model) some() []uint32 {
	var list []uint32
	for _, id := range slices.Sorted(maps.Keys(m.backs)) {
		if m.random.IntN(4) == 0 {
			list = append(list, id)
		}
	}
	return list
}

// front creates a random row.
func (m *model) front(i int) *frontends.Frontend {
	a := frontAddress(i)
	if m.ids[a] == 0 {
		m.ids[a] = uint32(1000 + i)
	}
	row := &frontends.Frontend{Address: a, ID: m.ids[a], Kind: frontends.ClusterIP, Service: fmt.Sprint("ns/s", i), Backends: m.some()}
	flag := func() bool { return m.random.IntN(3) == 0 }
	row.TwoScopes, row.Outside, row.Maglev, row.LocalOnly, row.Loopback, row.Drop = flag(), flag(), flag(), flag(), flag(), flag()
	if row.TwoScopes {
		row.Internal = m.some()
	}
	if flag() {
		row.Affinity = 10
	}
	if flag() {
		row.Kind = frontends.NodePort
	}
	if flag() {
		row.Ranges = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(m.random.IntN(3)), 0}), 24)}
		row.Deny = flag()
	}
	return row
}

// change changes rows at random, in one transaction.
func (m *model) change(a *agent) {
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	defer txn.Commit()
	for range 1 + m.random.IntN(4) {
		switch i := m.random.IntN(12); m.random.IntN(6) {
		case 0: // a new backend
			m.nextBack++
			b := &backends.Backend{Address: backAddress(m.nextBack), ID: m.nextBack, State: backends.Active, Local: m.random.IntN(2) == 0, Services: []string{"ns/s1"}}
			m.backs[b.ID] = b
			m.insertBack(txn, a, b)
		case 1: // a backend is removed
			for id, b := range m.backs {
				delete(m.backs, id)
				_, _, _ = a.backs.Delete(txn, b)
				for _, row := range m.fronts {
					next := row.Clone()
					next.Backends = slices.DeleteFunc(slices.Clone(row.Backends), func(o uint32) bool { return o == id })
					next.Internal = slices.DeleteFunc(slices.Clone(row.Internal), func(o uint32) bool { return o == id })
					if !next.Equal(row) {
						m.insertFront(txn, a, next)
					}
				}
				break
			}
		case 2: // a backend changes
			for id, b := range m.backs {
				next := *b
				next.Local = !b.Local
				m.backs[id] = &next
				m.insertBack(txn, a, &next)
				break
			}
		case 3: // a frontend is removed
			if row := m.fronts[frontAddress(i)]; row != nil {
				delete(m.fronts, row.Address)
				_, _, _ = a.Frontends.Table.Delete(txn, row)
			}
		default:
			m.insertFront(txn, a, m.front(i))
		}
	}
}

func (m *model) insertFront(txn statedb.WriteTxn, a *agent, row *frontends.Frontend) {
	m.remember(row)
	m.fronts[row.Address] = row
	_, _, _ = a.Frontends.Table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending()))
}

func (m *model) insertBack(txn statedb.WriteTxn, a *agent, b *backends.Backend) {
	_, _, _ = a.backs.Insert(txn, b)
}

// restart begins a new run with the current rows.
func (m *model) restart(seen bool) *agent {
	a := newAgent(m.t, m.fakes)
	if m.full {
		a.writer.known.inPlace = 2
	}
	if !seen {
		return a
	}
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	for _, b := range m.backs {
		m.insertBack(txn, a, b)
	}
	for _, row := range m.fronts {
		m.insertFront(txn, a, row)
	}
	txn.Commit()
	a.completeTables()
	return a
}

// settle makes passes until no work is left.
func (m *model) settle(a *agent) {
	m.t.Helper()
	for range 1000 {
		wait := a.step(m.now)
		if wait == 0 {
			return
		}
		m.now = m.now.Add(wait)
	}
	m.t.Fatal("it never settles")
}

// check compares the maps with the rows.
func (m *model) check(a *agent) {
	m.t.Helper()
	f := m.fakes
	var seed, _ = maglev.ParseSeed(DefaultConfig.Seed)
	entries, members, ranges, tables := 0, map[bpf.AffinityMember]uint32{}, map[bpf.SourceRangeKey]bool{}, map[string]bool{}
	for _, row := range m.fronts {
		for _, scope := range scopes(row) {
			entries++
			key := bpf.NewServiceKey(row.Address, scope)
			have, found := f.services.entries[key]
			want, list := valueOf(row, scope), row.Backends
			if scope == bpf.ScopeInternal {
				list = row.Internal
			}
			if row.Maglev && row.Outside && scope == bpf.ScopeExternal && len(list) > 1 {
				want.Flags |= bpf.ServiceMaglev
				want.Maglev, want.MaglevSize = have.Maglev, tableSize
				tables[keyOf(list)] = true
				names := make([]string, len(list))
				for i, id := range list {
					names[i] = backAddress(id).String()
				}
				for slot, i := range maglev.Table(names, tableSize, seed) {
					if got := f.maglev.get(have.Maglev + uint32(slot)); got != list[i] {
						m.t.Fatalf("%s: slot %d of its table has %d, want %d", row.Address, slot, got, list[i])
					}
				}
			}
			want.First, want.Count = have.First, uint32(len(list))
			if !found || have != want || !m.equal(f.list(have), list) {
				m.t.Fatalf("%s, scope %d: have %+v %v, want %+v %v", row.Address, scope, have, f.list(have), want, list)
			}
			for _, id := range list {
				if row.Affinity > 0 {
					members[bpf.AffinityMember{Service: row.ID, Backend: id}] |= 1 << scope
				}
			}
		}
		for _, p := range row.Ranges {
			ranges[bpf.NewSourceRangeKey(row.ID, bpf.SourceRange{Prefix: p, Deny: row.Deny})] = true
		}
		if have, _, _ := a.Frontends.Table.Get(a.DB.ReadTxn(), frontends.ByAddress(row.Address)); have.Status.Kind != reconciler.StatusKindDone {
			m.t.Fatalf("%s is %s", row.Address, have.Status)
		}
	}
	if n := len(f.services.entries); n != entries {
		m.t.Fatalf("%d entries, want %d", n, entries)
	}
	for id, b := range m.backs {
		if have := f.backends.get(id); have != bpf.NewBackend(b.Address, only(b.Local, bpf.BackendLocal)) {
			m.t.Fatalf("backend %d: have %+v", id, have)
		}
	}
	if n := len(f.backends.entries); n != len(m.backs) {
		m.t.Fatalf("%d backends, want %d", n, len(m.backs))
	}
	if have := f.members.entries; !maps.Equal(have, members) {
		m.t.Fatalf("have members %v, want %v", have, members)
	}
	same(m.t, "ranges", f.ranges.keys(), ranges)
	slots := 0
	for _, s := range f.services.entries {
		slots += int(s.Count)
	}
	if len(a.writer.known.tables.byKey) != len(tables) || len(a.writer.known.waiting) != 0 {
		m.t.Fatalf("%d tables, want %d; %d in quarantine", len(a.writer.known.tables.byKey), len(tables), len(a.writer.known.waiting))
	}
	used := map[string]int{bpf.MapServices: entries, bpf.MapBackends: len(m.backs), bpf.MapServiceSlots: slots, bpf.MapMaglev: len(tables) * tableSize,
		bpf.MapAffinityMembers: len(members), bpf.MapSourceRanges: len(ranges)}
	var all namespace
	for _, one := range a.writer.known.namespaces {
		all.entries, all.backends, all.slots, all.quarantined = all.entries+one.entries, all.backends+one.backends, all.slots+one.slots, all.quarantined+one.quarantined
	}
	if want := (namespace{entries: entries, backends: len(m.backs), slots: slots}); all != want {
		m.t.Fatalf("the namespaces use %+v, want %+v", all, want)
	}
	for _, u := range a.writer.known.usage() {
		if int(u.Entries) != used[u.Map] {
			m.t.Fatalf("the map %s has %d entries in use, want %d", u.Map, u.Entries, used[u.Map])
		}
	}
}

// equal compares the backends in slots with those of a row. Overwritten slots have any order.
func (m *model) equal(have, want []uint32) bool {
	if m.full {
		have, want = slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(want))
	}
	return slices.Equal(have, want)
}

func same[K comparable](t *testing.T, what string, have []K, want map[K]bool) {
	t.Helper()
	for _, key := range have {
		if !want[key] {
			t.Fatalf("%s: %v is not expected", what, key)
		}
	}
	if len(have) != len(want) {
		t.Fatalf("%d %s, want %d", len(have), what, len(want))
	}
}

func newModel(t *testing.T, f *fakes) *model {
	return &model{t: t, random: testseed.New(t), fakes: f, now: time.Unix(1e9, 0),
		fronts: map[loadbalancer.Address]*frontends.Frontend{}, backs: map[uint32]*backends.Backend{},
		ids: map[loadbalancer.Address]uint32{}, lists: map[bpf.ServiceKey]map[string]bool{}}
}
