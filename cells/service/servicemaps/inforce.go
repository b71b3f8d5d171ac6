package servicemaps

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

// inForce is the contents of the maps, as known to this run, with the allocation of their elements. Its methods plan and record writes; the [writer] makes them.
type inForce struct {
	entries  map[bpf.ServiceKey]*entry
	backends map[uint32]*backend
	holdings holdings // members and ranges
	slots    slots
	tables   *tables       // Maglev tables
	waiting  []quarantined // sorted by time
	later    deferred
	sizes    map[string]uint32 // capacity of each map
	rejected map[string]uint64 // number of refused writes of full maps, by map
	freed    capacity          // what became free since the last retry
	inPlace  int               // the constant [inPlace], except in tests

	namespaces       namespaces
	unclaimed        *namespace // entries of the previous run whose row is not known yet; it has no quota
	namespaceEntries int        // the flag --service-entries-per-namespace
	planned          int        // number of planned entries of the map services
}

// entry is an entry of the map services.
type entry struct {
	value bpf.Service
	table *table // nil without Maglev
	owner *namespace
	// wanted is false if the row of the entry is deleted, or has not been handled yet in this run.
	wanted bool
	// ours is false if a previous run has left the entry with slots that another entry has too, or that do not exist.
	ours bool
	// changed means that another writer has changed the entry, so it must be written again. damaged means that its slots or its table were changed, so it needs
	// others.
	changed, damaged bool
}

// shares reports whether an entry has slots of the existing one. Their numbers differ if the slots are overwritten, see overwrite.go.
func (e *entry) shares(have *entry) bool {
	return have != nil && have.ours && e.value.Count > 0 && have.value.Count > 0 && have.value.First == e.value.First
}

// backend is an entry of the map backends.
type backend struct {
	value   bpf.Backend
	owner   *namespace
	wanted  bool
	changed bool // by another writer
}

// quarantine is how long slots stay unchanged after their entry was replaced or removed. A program that has read the entry finishes its packet or system call
// long before.
const quarantine = time.Second

// quarantined are the parts of a replaced entry that become free at a time.
type quarantined struct {
	until        time.Time
	first, count uint32   // run of slots
	of           uint32   // first slot of the entry that had the run
	displaced    []uint32 // backends that were overwritten in other slots
	table        *table
	owner        *namespace // of the slots
	id           uint32     // of a frontend whose source ranges are held; 0 for none
}

// retire quarantines the slots and the table of an entry, except the first slots if the next entry uses them. id is the frontend whose ranges are held, or 0.
func (f *inForce) retire(e *entry, used, id uint32, now time.Time) {
	q := quarantined{until: now.Add(quarantine), table: e.table, owner: e.owner, id: id}
	if e.ours && e.value.Count > 0 { // an entry without slots has the number of the first slot of another one
		used = min(used, e.value.Count)
		q.first, q.count, q.of = e.value.First+used, e.value.Count-used, e.value.First
		q.displaced = f.slots.displaced[e.value.First]
		delete(f.slots.displaced, e.value.First)
		q.owner.quarantined += int(q.count)
	}
	if q.count > 0 || len(q.displaced) > 0 || q.table != nil || q.id != 0 {
		f.waiting = append(f.waiting, q)
	}
}

// release frees everything whose quarantine has ended, and calls unheld for each frontend whose ranges were held.
func (f *inForce) release(now time.Time, unheld func(id uint32)) {
	for len(f.waiting) > 0 && !f.waiting[0].until.After(now) {
		q := f.waiting[0]
		f.waiting = f.waiting[1:]
		f.slots.drop(q.first, q.count)
		q.owner.slots -= int(q.count)
		q.owner.quarantined -= int(q.count)
		f.slots.refer(q.displaced, -1)
		f.tables.drop(q.table)
		if b := f.holdings.of[q.id]; b != nil {
			b.held--
			unheld(q.id)
		}
		if q.count > 0 || len(q.displaced) > 0 {
			f.freed |= capacityOf(bpf.MapServiceSlots)
		}
		if q.table != nil && q.table.users == 0 {
			f.freed |= capacityOf(bpf.MapMaglev)
		}
	}
}

// replace records that an entry is in force.
func (f *inForce) replace(key bpf.ServiceKey, next *entry, now time.Time) {
	if have := f.entries[key]; have != nil {
		used := uint32(0)
		if next.shares(have) {
			used = next.value.Count
		}
		f.retire(have, used, f.holdings.retainRanges(have.value, next.value), now)
	}
	f.entries[key] = next
}

// fullIs counts an error that means that a map is full, and adds the flag to raise.
func (f *inForce) fullIs(in string, err error, flag string) error {
	if servicemap.Full(err) {
		f.rejected[in]++
		return &noCapacity{of: capacityOf(in), error: fmt.Errorf("%w: it is full, raise %s", err, flag)}
	}
	return err
}

// usage returns the usage of each map. It uses maintained counters, because counting would take longer than most changes.
func (f *inForce) usage() []servicemapusage.Usage {
	all := []servicemapusage.Usage{
		{Map: bpf.MapServices, Entries: uint32(len(f.entries))},
		{Map: bpf.MapBackends, Entries: uint32(len(f.backends))},
		{Map: bpf.MapServiceSlots, Entries: f.slots.runs.used},
		{Map: bpf.MapMaglev, Entries: f.tables.count()},
		{Map: bpf.MapAffinityMembers, Entries: f.holdings.members},
		{Map: bpf.MapSourceRanges, Entries: f.holdings.ranges},
	}
	for i := range all {
		all[i].MaxEntries, all[i].Refused = f.sizes[all[i].Map], f.rejected[all[i].Map]
	}
	return all
}
