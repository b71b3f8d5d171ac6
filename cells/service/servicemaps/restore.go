package servicemaps

import (
	"fmt"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/maglev"
)

// read restores the state from the maps, as a previous run left them.
func read(m servicemap.Maps, tableSize uint32, seed maglev.Seed) (*inForce, error) {
	f := &inForce{entries: map[bpf.ServiceKey]*entry{}, backends: map[uint32]*backend{}, holdings: holdings{of: map[uint32]*belongings{}},
		later: deferred{since: map[bpf.ServiceKey]time.Time{}}, rejected: map[string]uint64{}, namespaces: namespaces{}, unclaimed: &namespace{}, inPlace: inPlace}
	if err := f.readSizes(m); err != nil {
		return nil, err
	}
	f.slots = slots{runs: newRuns(f.sizes[bpf.MapServiceSlots]), refs: map[uint32]int32{}, displaced: map[uint32][]uint32{}}
	f.tables = newTables(tableSize, f.sizes[bpf.MapMaglev], seed)
	for _, step := range []func(servicemap.Maps) error{f.readBackends, f.readSlots, f.readEntries, f.readBelongings} {
		if err := step(m); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// readSizes reads the capacities of the maps.
func (f *inForce) readSizes(all servicemap.Maps) (err error) {
	f.sizes = map[string]uint32{}
	for _, m := range []interface {
		Name() string
		Size() (uint32, error)
	}{all.Services, all.Backends, all.Slots, all.Maglev, all.Members, all.Ranges} {
		if f.sizes[m.Name()], err = m.Size(); err != nil {
			return err
		}
	}
	return nil
}

func (f *inForce) readBackends(m servicemap.Maps) error {
	ids, values, err := m.Backends.Dump()
	for i, id := range ids {
		f.backends[id] = &backend{value: values[i], owner: f.unclaimed}
	}
	f.unclaimed.backends = len(ids)
	return err
}

func (f *inForce) readSlots(m servicemap.Maps) error {
	size := f.sizes[bpf.MapServiceSlots]
	_, contents, err := m.Slots.Dump()
	if err == nil && len(contents) != int(size) {
		err = fmt.Errorf("read the map %s: it has %d elements, but %d were read", bpf.MapServiceSlots, size, len(contents))
	}
	f.slots.contents = slices.Clone(contents) // without the spare capacity of the read: the slice stays allocated as long as the agent runs
	return err
}

func (f *inForce) readEntries(m servicemap.Maps) error {
	keys, values, err := m.Services.Dump()
	if err != nil {
		return err
	}
	var tables []uint32
	for i, key := range keys {
		e := &entry{value: values[i], owner: f.unclaimed, ours: f.slots.runs.take(values[i].First, values[i].Count)}
		f.slots.refer(f.slots.list(e), 1)
		if e.value.Flags&bpf.ServiceMaglev != 0 {
			if tables == nil {
				if _, tables, err = m.Maglev.Dump(); err != nil {
					return err
				}
			}
			e.table = f.tables.restore(e.value.Maglev, e.value.MaglevSize, tables)
		}
		f.entries[key] = e
		e.owner.entries++
		e.owner.slots += len(f.slots.list(e))
	}
	return nil
}

func (f *inForce) readBelongings(m servicemap.Maps) error {
	members, scopes, err := m.Members.Dump()
	if err != nil {
		return err
	}
	for i, m := range members {
		enter(f.holdings.get(m.Service).members, m.Backend, member{has: scopes[i]}, &f.holdings.members)
	}
	ranges, _, err := m.Ranges.Dump()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if p := bpf.SourceRangeOf(r); p.IsValid() && bpf.NewSourceRangeKey(r.Service, p) == r {
			enter(f.holdings.get(r.Service).ranges, p, false, &f.holdings.ranges)
		}
	}
	return nil
}
