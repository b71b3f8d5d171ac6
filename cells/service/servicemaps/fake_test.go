package servicemaps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
)

// fake is a map in memory with a limited size, whose changes fail on request.
type fake[K comparable, V any] struct {
	name  string
	size  int
	array bool // K is uint32 then

	mu      sync.Mutex
	entries map[K]V
	writes  int
	fails   func() bool                      // for the next change; nil for never
	before  func(key K, value V, there bool) // called before each change, without the lock
	after   func()                           // called after each change, without the lock
}

func newFakeMap[K comparable, V any](name string, size int) *fake[K, V] {
	return &fake[K, V]{name: name, size: size, entries: map[K]V{}}
}

func (f *fake[K, V]) Name() string          { return f.name }
func (f *fake[K, V]) Size() (uint32, error) { return uint32(f.size), nil }

func (f *fake[K, V]) Dump() (keys []K, values []V, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.array {
		for i := range f.size {
			key := any(uint32(i)).(K)
			keys, values = append(keys, key), append(values, f.entries[key])
		}
		return keys, values, nil
	}
	for key, value := range f.entries {
		keys, values = append(keys, key), append(values, value)
	}
	return keys, values, nil
}

func (f *fake[K, V]) Head(n int) ([]K, []V, error) {
	keys, values, err := f.Dump()
	n = min(n, len(keys))
	return keys[:n], values[:n], err
}

// change makes one change.
func (f *fake[K, V]) change(key K, value V, there bool) error {
	if f.before != nil {
		f.before(key, value, there)
	}
	err := f.apply(key, value, there)
	if f.after != nil {
		f.after()
	}
	return err
}

var errTest = errors.New("refused, says the test")

func (f *fake[K, V]) apply(key K, value V, there bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.fails != nil && f.fails() {
		return fmt.Errorf("change the map %s: %w", f.name, errTest)
	}
	if !there {
		delete(f.entries, key)
		return nil
	}
	if _, found := f.entries[key]; !found && !f.array && len(f.entries) == f.size {
		return fmt.Errorf("write to the map %s: %w", f.name, unix.E2BIG)
	}
	f.entries[key] = value
	return nil
}

func (f *fake[K, V]) each(keys []K, do func(i int) error) (failed servicemap.Failures) {
	for i := range keys {
		if err := do(i); err != nil {
			if failed == nil {
				failed = servicemap.Failures{}
			}
			failed[i] = err
		}
	}
	return failed
}

func (f *fake[K, V]) Put(keys []K, values []V) servicemap.Failures {
	return f.each(keys, func(i int) error { return f.change(keys[i], values[i], true) })
}

func (f *fake[K, V]) Delete(keys []K) servicemap.Failures {
	var none V
	return f.each(keys, func(i int) error { return f.change(keys[i], none, false) })
}

// get reads one entry.
func (f *fake[K, V]) get(key K) V {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries[key]
}

func (f *fake[K, V]) keys() []K {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.entries))
}

func (f *fake[K, V]) fail(fails func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = fails
}

// count returns the number of changes.
func (f *fake[K, V]) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// fakes are all maps.
type fakes struct {
	services *fake[bpf.ServiceKey, bpf.Service]
	backends *fake[uint32, bpf.Backend]
	slots    *fake[uint32, uint32]
	maglev   *fake[uint32, uint32]
	members  *fake[bpf.AffinityMember, uint32]
	ranges   *fake[bpf.SourceRangeKey, uint32]
	affinity *fake[bpf.AffinityKey, bpf.AffinityEntry]
}

// tableSize is the size of Maglev tables in tests.
const tableSize = 251

func newFakes(size, slots, tables int) *fakes {
	f := &fakes{
		services: newFakeMap[bpf.ServiceKey, bpf.Service](bpf.MapServices, size),
		backends: newFakeMap[uint32, bpf.Backend](bpf.MapBackends, size),
		slots:    newFakeMap[uint32, uint32](bpf.MapServiceSlots, slots),
		maglev:   newFakeMap[uint32, uint32](bpf.MapMaglev, max(1, tables*tableSize)),
		members:  newFakeMap[bpf.AffinityMember, uint32](bpf.MapAffinityMembers, size),
		ranges:   newFakeMap[bpf.SourceRangeKey, uint32](bpf.MapSourceRanges, size),
		affinity: newFakeMap[bpf.AffinityKey, bpf.AffinityEntry](bpf.MapAffinity, size),
	}
	f.slots.array, f.maglev.array = true, true
	return f
}

func (f *fakes) maps() servicemap.Maps {
	return servicemap.Maps{Services: f.services, Backends: f.backends, Slots: f.slots, Maglev: f.maglev, Members: f.members, Ranges: f.ranges,
		Affinity: f.affinity}
}

// fail sets when changes of all maps fail.
func (f *fakes) fail(fails func() bool) {
	f.services.fail(fails)
	f.backends.fail(fails)
	f.slots.fail(fails)
	f.maglev.fail(fails)
	f.members.fail(fails)
	f.ranges.fail(fails)
}

// writes returns the number of changes of all maps except affinity.
func (f *fakes) writes() int {
	return f.services.count() + f.backends.count() + f.slots.count() + f.maglev.count() + f.members.count() + f.ranges.count()
}

// list returns the backends in the slots of an entry.
func (f *fakes) list(s bpf.Service) []uint32 {
	list := make([]uint32, s.Count)
	for i := range list {
		list[i] = f.slots.get(s.First + uint32(i))
	}
	return list
}
