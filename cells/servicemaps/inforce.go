package servicemaps

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

// inForce is the contents of the maps, as known to this run.
type inForce struct {
	maps     servicemaps.Maps
	entries  map[bpf.ServiceKey]*entry
	backends map[uint32]*backend
	belong   map[uint32]*belongings // by id of a frontend; frontends without any are omitted
	refs     map[uint32]int32       // number of runs of slots that name a backend, including quarantined runs
	slots    []uint32               // contents of service_slots as written
	runs     *runs                  // allocation of the slots
	tables   *tables                // Maglev tables
	waiting  []quarantined          // sorted by time
	sizes    map[string]uint32      // capacity of each map
	members  uint32                 // number of members of all belongings
	ranges   uint32
}

// entry is an entry of the map services.
type entry struct {
	value bpf.Service
	table *table // nil without Maglev
	// wanted is false if the row of the entry is deleted, or has not been handled yet in this run.
	wanted bool
	// ours is false if a previous run has left the entry with slots that another entry has too, or that do not exist.
	ours bool
	// changed means that another writer has changed the entry, so it must be written again. damaged means that its slots or its table were changed, so it needs
	// others.
	changed, damaged bool
}

// backend is an entry of the map backends.
type backend struct {
	value   bpf.Backend
	wanted  bool
	changed bool // by another writer
}

// belongings are the members and ranges of a frontend in other maps.
type belongings struct {
	of      bpf.ServiceKey // the owner, while wanted is true
	wanted  bool
	members map[uint32]member        // by backend
	ranges  map[bpf.SourceRange]bool // false for ranges that are no longer used
	held    int                      // number of quarantined entries that need the ranges
	// unsettled means that the row is not in force yet: the entry in force may still use ranges that the row does not.
	unsettled bool
}

// member holds the scopes of a frontend that have a backend, one bit for each: those in the map, and the desired ones. 0 means no scope.
type member struct{ has, wants uint32 }

// enter adds a member or range, or changes its value. Like [strike] it updates the total in all.
func enter[K comparable, V any](some map[K]V, key K, value V, all *uint32) {
	if _, there := some[key]; !there {
		*all++
	}
	some[key] = value
}

// strike removes a member or range that is no longer in the map.
func strike[K comparable, V any](some map[K]V, key K, all *uint32) {
	if _, there := some[key]; there {
		*all--
		delete(some, key)
	}
}

func (b *belongings) empty() bool { return len(b.members) == 0 && len(b.ranges) == 0 && b.held == 0 }

// quarantine is how long slots stay unchanged after their entry was replaced or removed. A program that has read the entry finishes its packet or system call
// long before.
const quarantine = time.Second

// quarantined are the parts of a replaced entry that become free at a time.
type quarantined struct {
	until        time.Time
	first, count uint32 // run of slots
	table        *table
	id           uint32 // of a frontend whose source ranges are held; 0 for none
}

// list returns the backends in the slots of an entry.
func (f *inForce) list(e *entry) []uint32 {
	return f.slots[e.value.First : e.value.First+e.value.Count]
}

// refer adds by to the reference count of each backend in a run of slots.
func (f *inForce) refer(list []uint32, by int32) {
	for _, id := range list {
		if f.refs[id] += by; f.refs[id] == 0 {
			delete(f.refs, id)
		}
	}
}

// retire quarantines the slots and the table of an entry. id is the frontend whose ranges are held, or 0.
func (f *inForce) retire(e entry, id uint32, now time.Time) {
	q := quarantined{until: now.Add(quarantine), table: e.table, id: id}
	if e.ours {
		q.first, q.count = e.value.First, e.value.Count
	}
	if q.count > 0 || q.table != nil || q.id != 0 {
		f.waiting = append(f.waiting, q)
	}
}

// release frees everything whose quarantine has ended, and reports whether there was something to free.
func (c *controller) release(now time.Time) (released bool) {
	for len(c.waiting) > 0 && !c.waiting[0].until.After(now) {
		q := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.drop(q.first, q.count)
		c.tables.drop(q.table)
		if b := c.belong[q.id]; b != nil {
			b.held--
			c.untidy[q.id] = nil
		}
		released = true
	}
	return released
}

// drop frees slots at once.
func (f *inForce) drop(first, count uint32) {
	f.refer(f.slots[first:first+count], -1)
	f.runs.give(first, count)
}

// read restores the state from the maps, as a previous run left them.
func read(m servicemaps.Maps, tableSize uint32) (*inForce, error) {
	f := &inForce{maps: m, entries: map[bpf.ServiceKey]*entry{}, backends: map[uint32]*backend{}, belong: map[uint32]*belongings{},
		refs: map[uint32]int32{}}
	if err := f.readSizes(); err != nil {
		return nil, err
	}
	f.runs, f.tables = newRuns(f.sizes[m.Slots.Name()]), newTables(tableSize, f.sizes[m.Maglev.Name()])
	for _, step := range []func() error{f.readBackends, f.readSlots, f.readEntries, f.readBelongings} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *inForce) readBackends() error {
	ids, values, err := f.maps.Backends.Dump()
	for i, id := range ids {
		f.backends[id] = &backend{value: values[i]}
	}
	return err
}

func (f *inForce) readSlots() (err error) {
	size := f.sizes[f.maps.Slots.Name()]
	if _, f.slots, err = f.maps.Slots.Dump(); err == nil && len(f.slots) != int(size) {
		err = fmt.Errorf("read the map %s: it has %d elements, but %d were read", f.maps.Slots.Name(), size, len(f.slots))
	}
	return err
}

func (f *inForce) readEntries() error {
	keys, values, err := f.maps.Services.Dump()
	if err != nil {
		return err
	}
	var tables []uint32
	for i, key := range keys {
		e := &entry{value: values[i], ours: f.runs.take(values[i].First, values[i].Count)}
		if e.ours {
			f.refer(f.list(e), 1)
		}
		if e.value.Flags&bpf.ServiceMaglev != 0 {
			if tables == nil {
				if _, tables, err = f.maps.Maglev.Dump(); err != nil {
					return err
				}
			}
			e.table = f.tables.restore(e.value.Maglev, e.value.MaglevSize, tables)
		}
		f.entries[key] = e
	}
	return nil
}

func (f *inForce) readBelongings() error {
	members, scopes, err := f.maps.Members.Dump()
	if err != nil {
		return err
	}
	for i, m := range members {
		enter(f.of(m.Service).members, m.Backend, member{has: scopes[i]}, &f.members)
	}
	ranges, _, err := f.maps.Ranges.Dump()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if p := bpf.SourceRangeOf(r); p.IsValid() && bpf.NewSourceRangeKey(r.Service, p) == r {
			enter(f.of(r.Service).ranges, p, false, &f.ranges)
		}
	}
	return nil
}

// of returns the belongings of a frontend, and creates them if there are none.
func (f *inForce) of(id uint32) *belongings {
	b := f.belong[id]
	if b == nil {
		b = &belongings{members: map[uint32]member{}, ranges: map[bpf.SourceRange]bool{}}
		f.belong[id] = b
	}
	return b
}
