package servicemaps

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// memoryMaps are real maps without pins.
type memoryMaps struct {
	pinnedmaps.Maps
	all map[string]*ebpf.Map
}

func (m memoryMaps) Get(name string) (*ebpf.Map, error) { return m.all[name], nil }
func (m memoryMaps) PutBatch(name string, keys, values any) (int, error) {
	return m.all[name].BatchUpdate(keys, values, nil)
}
func (m memoryMaps) DeleteBatch(name string, keys any) (int, error) {
	return m.all[name].BatchDelete(keys, nil)
}

// realMaps creates the maps of services. The argument sizes overrides the sizes in the programs.
func realMaps(t testing.TB, sizes map[string]uint32) servicemap.Maps {
	t.Helper()
	return servicemap.New(newMemoryMaps(t, sizes))
}

func newMemoryMaps(t testing.TB, sizes map[string]uint32) memoryMaps {
	t.Helper()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	m := memoryMaps{all: map[string]*ebpf.Map{}}
	for _, name := range []string{bpf.MapServices, bpf.MapBackends, bpf.MapServiceSlots, bpf.MapMaglev, bpf.MapAffinity, bpf.MapAffinityMembers,
		bpf.MapSourceRanges} {
		spec := specs[name].Copy()
		spec.Pinning = ebpf.PinNone
		if sizes[name] != 0 {
			spec.MaxEntries = sizes[name]
		}
		made, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = made.Close() })
		m.all[name] = made
	}
	return m
}

// many is the number of services in the performance budget.
const many = 50000

// insert inserts rows of services with one backend each.
func insert(a *agent, from, to int) {
	txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
	defer txn.Commit()
	for i := from; i < to; i++ {
		id := uint32(i + 1)
		_, _, _ = a.backs.Insert(txn, &backends.Backend{Address: backAddress(id), ID: id, State: backends.Active, Services: []string{"ns/s"}})
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(i), ID: id, Kind: frontends.ClusterIP, Service: "ns/s",
			Backends: []uint32{id}, Status: reconciler.StatusPending()})
	}
}

// BenchmarkPrivilegedRestart measures the first pass over 50,000 services with one backend each, with their statuses, after a previous run has written them
// all.
func BenchmarkPrivilegedRestart(b *testing.B) {
	maps := realMaps(b, nil)
	for b.Loop() {
		b.StopTimer()
		a := newAgentOf(b, maps)
		insert(a, 0, many)
		a.completeTables()
		b.StartTimer()
		a.step(time.Now())
	}
}

// processorTime returns the CPU time of the process, which depends little on other load of the machine.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestPrivilegedMaps_ReadWrittenEntries writes real maps, and reads them in a run that must write nothing, and as a dump.
func TestPrivilegedMaps_ReadWrittenEntries(t *testing.T) {
	t.Parallel()
	maps := realMaps(t, map[string]uint32{bpf.MapMaglev: 20 * tableSize})
	m := newModel(t, newFakes(0, 0, 0))
	a := newAgentOf(t, maps)
	a.completeTables()
	for range 50 {
		m.change(a)
		m.now = m.now.Add(100 * time.Millisecond)
		a.step(m.now)
	}
	m.settle(a)
	copyInto(t, m.fakes.services, maps.Services)
	copyInto(t, m.fakes.backends, maps.Backends)
	copyInto(t, m.fakes.slots, maps.Slots)
	copyInto(t, m.fakes.maglev, maps.Maglev)
	copyInto(t, m.fakes.members, maps.Members)
	copyInto(t, m.fakes.ranges, maps.Ranges)
	m.check(a)

	fronts, backs, err := maps.Dump()
	if err != nil {
		t.Fatal(err)
	}
	ids, backIDs, err := maps.IDs()
	if err != nil || len(backs) != len(m.backs) || len(backIDs) != len(backs) || len(ids) != len(m.fronts) {
		t.Fatalf("%d backends and ids of %d, %d frontends: %v", len(backs), len(backIDs), len(ids), err)
	}
	for _, f := range fronts {
		row := m.fronts[f.Address]
		list := row.Backends
		if f.Scope == bpf.ScopeInternal {
			list = row.Internal
		} else if fmt.Sprint(f.Ranges) != fmt.Sprint(row.Ranges) {
			t.Errorf("%s: ranges %v, want %v", f.Address, f.Ranges, row.Ranges)
		}
		if f.ID != row.ID || ids[f.Address] != row.ID || !slices.Equal(f.Backends, list) || f.Affinity != row.Affinity {
			t.Errorf("have %+v, want %+v", f, row)
		}
	}
}

func copyInto[K comparable, V any](t *testing.T, to *fake[K, V], from servicemap.Table[K, V]) {
	t.Helper()
	keys, values, err := from.Dump()
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		to.entries[key] = values[i]
	}
}

// TestPrivilegedMaps_Full fills real maps, and checks that the errors of the kernel are recognized.
func TestPrivilegedMaps_Full(t *testing.T) {
	t.Parallel()
	maps := realMaps(t, map[string]uint32{bpf.MapServices: 1, bpf.MapSourceRanges: 1})
	var keys []bpf.ServiceKey
	var ranges []bpf.SourceRangeKey
	for i := range 3 {
		keys = append(keys, bpf.NewServiceKey(frontAddress(i), bpf.ScopeExternal))
		ranges = append(ranges, bpf.NewSourceRangeKey(uint32(i), bpf.SourceRange{Prefix: privatePrefix}))
	}
	for what, failed := range map[string]servicemap.Failures{
		"services": maps.Services.Put(keys, make([]bpf.Service, 3)), "source ranges": maps.Ranges.Put(ranges, make([]uint32, 3)),
	} {
		if len(failed) != 2 || !servicemap.Full(failed[1]) || !servicemap.Full(failed[2]) {
			t.Errorf("%s: %v", what, failed)
		}
	}
	if failed := maps.Services.Delete(keys); failed != nil {
		t.Errorf("delete present and missing entries: %v", failed)
	}
	if left, _, err := maps.Services.Dump(); len(left) != 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}
