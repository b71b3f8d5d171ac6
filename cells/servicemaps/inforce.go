package servicemaps

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

// inForce is what the maps hold, as far as this run knows.
type inForce struct {
	maps     servicemaps.Maps
	entries  map[bpf.ServiceKey]*entry
	backends map[uint32]*backend
	belong   map[uint32]*belongings // by id of a frontend; those without any are left out
	refs     map[uint32]int32       // how many runs of slots name a backend, those in quarantine included
	slots    []uint32               // what was written to service_slots
	runs     *runs                  // which of them are somebody's
	tables   *tables                // of Maglev
	waiting  []quarantined          // by time
	sizes    map[string]uint32      // room in each map
	members  uint32                 // how many all belongings are together
	ranges   uint32
}

// entry is one of services.
type entry struct {
	value bpf.Service
	table *table // nil without Maglev
	// wanted is false of one whose row is gone, or did not come yet in this run.
	wanted bool
	// ours is false where an earlier run has left it with slots that others have too, or that do not exist.
	ours bool
	// changed means that somebody else has changed it, so it has to be written again; damaged, that this happened to its slots or
	// its table, so it needs others.
	changed, damaged bool
}

// backend is one of backends.
type backend struct {
	value   bpf.Backend
	wanted  bool
	changed bool // by somebody else
}

// belongings are what other maps hold of a frontend, by its id.
type belongings struct {
	of      bpf.ServiceKey // whose they are, when they are wanted
	wanted  bool
	members map[uint32]member        // backends
	ranges  map[bpf.SourceRange]bool // false of those that are not wanted any more
	held    int                      // times that ranges have to stay until something leaves quarantine
	// unsettled means that the row is not in force yet: ranges that it does not want may be those of the entry that is.
	unsettled bool
}

// member says which scopes of a frontend have a backend, a bit for each: as the map has it, and as it shall be. None is nowhere.
type member struct{ has, wants uint32 }

// enter adds to belongings, or says another thing of one that is there. Like [strike] it keeps the number of all.
func enter[K comparable, V any](some map[K]V, key K, value V, all *uint32) {
	if _, there := some[key]; !there {
		*all++
	}
	some[key] = value
}

// strike takes from belongings what is in the map no more.
func strike[K comparable, V any](some map[K]V, key K, all *uint32) {
	if _, there := some[key]; there {
		*all--
		delete(some, key)
	}
}

func (b *belongings) empty() bool { return len(b.members) == 0 && len(b.ranges) == 0 && b.held == 0 }

// quarantine is how long slots stay as they are when the entry that named them is gone: whoever has read it is done with a packet or a
// system call long before.
const quarantine = time.Second

// quarantined is what is free some time after an entry was replaced.
type quarantined struct {
	until        time.Time
	first, count uint32 // slots
	table        *table
	id           uint32 // of a frontend whose source ranges are to go; 0 for none
}

// list is what the slots of an entry hold.
func (f *inForce) list(e *entry) []uint32 {
	return f.slots[e.value.First : e.value.First+e.value.Count]
}

// refer counts the backends that a run of slots names.
func (f *inForce) refer(list []uint32, by int32) {
	for _, id := range list {
		if f.refs[id] += by; f.refs[id] == 0 {
			delete(f.refs, id)
		}
	}
}

// retire puts what an entry had into quarantine. id is that of the frontend if its ranges have to go as well.
func (f *inForce) retire(e entry, id uint32, now time.Time) {
	q := quarantined{until: now.Add(quarantine), table: e.table, id: id}
	if e.ours {
		q.first, q.count = e.value.First, e.value.Count
	}
	if q.count > 0 || q.table != nil || q.id != 0 {
		f.waiting = append(f.waiting, q)
	}
}

// release frees what has been in quarantine for long enough, and tells whether there was something.
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

// read takes over what an earlier run has left.
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
		err = fmt.Errorf("read the map %s: it has %d elements, and %d were there to read", f.maps.Slots.Name(), size, len(f.slots))
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
			e.table = f.tables.adopt(e.value.Maglev, e.value.MaglevSize, tables)
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

// of finds what belongs to a frontend, or makes room for it.
func (f *inForce) of(id uint32) *belongings {
	b := f.belong[id]
	if b == nil {
		b = &belongings{members: map[uint32]member{}, ranges: map[bpf.SourceRange]bool{}}
		f.belong[id] = b
	}
	return b
}
