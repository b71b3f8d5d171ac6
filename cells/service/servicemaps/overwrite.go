package servicemaps

import (
	"errors"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// If no other slots are free, the slots of an entry are overwritten: a backend that was removed must not get connections until another frontend frees slots. A
// program that has read the entry in force then finds previous and next backends in its slots. All of them are backends of the frontend, and stay in their map
// until the quarantine of that entry ends.

// reuseSlots assigns the slots of the existing entry, and the free slots after them, to the next entry. If there are fewer slots than backends, the backends
// that have a slot keep one. It returns the backends that got slots, and whether the slots stay the same.
func (f *inForce) reuseSlots(p *plan, next, have *entry, list []uint32, w *batches) (fits []uint32, same bool) {
	n := f.extent(have, len(list))
	if has := f.slotsOf(have); n > has {
		n = has + min(n-has, f.quotaLeft(next.owner, bpf.MapServiceSlots))
	}
	if n < len(list) {
		err := f.noSlots(p.key, next.owner, len(list), f.slotsOf(have))
		if n == 0 || errors.Is(err, errLater) {
			p.fail(err)
			return nil, false
		}
		p.recordMissing(err)
		p.fewer = true
		list = shortened(list, f.slots.list(have), n)
	}
	if !have.damaged && slices.Equal(f.slots.list(have), list) {
		next.value.First, next.value.Count = have.value.First, have.value.Count
		return list, true
	}
	f.overwrite(p, next, have, list, w)
	return list, false
}

// inPlace is the least number of backends of an entry whose slots are overwritten although others are free: if one of many backends changes, few slots do, and no
// change has to wait until the slots of the previous ones leave the quarantine.
const inPlace = 256

// mayOverwrite reports whether the slots of the existing entry may be overwritten although others are free. The next backends then are affinity members of the
// existing entry too.
func (f *inForce) mayOverwrite(next, have *entry, list []uint32) bool {
	return len(list) >= f.inPlace && have != nil && !have.damaged && have.value.Id == next.value.Id && (have.value.Flags^next.value.Flags)&bpf.ServiceAffinity == 0 &&
		f.extent(have, len(list)) == len(list) && len(list)-f.slotsOf(have) <= f.quotaLeft(next.owner, bpf.MapServiceSlots)
}

// overwriteChanged assigns the slots of the existing entry, and the free slots after them, to the next entry. It reports whether the slots stay the same.
func (f *inForce) overwriteChanged(p *plan, next, have *entry, list []uint32, w *batches) (same bool) {
	own := f.slots.list(have)
	list = arranged(list, own)
	if slices.Equal(own, list) {
		next.value.First, next.value.Count = have.value.First, have.value.Count
		return true
	}
	f.overwrite(p, next, have, list, w)
	return false
}

// arranged returns a list in an order in which the backends that it has in common with own keep their slots. The other slots get the remaining backends.
func arranged(list, own []uint32) []uint32 {
	left := make(map[uint32]struct{}, len(list))
	for _, id := range list {
		left[id] = struct{}{}
	}
	order := make([]uint32, len(list)) // 0 is the id of no backend
	for i := range order[:min(len(order), len(own))] {
		if _, found := left[own[i]]; found {
			order[i] = own[i]
			delete(left, own[i])
		}
	}
	next := 0
	for _, id := range list {
		if _, found := left[id]; found {
			next += slices.Index(order[next:], 0)
			order[next] = id
		}
	}
	return order
}

// extent returns how many slots, up to n, an entry would have with the slots that follow its own and are free or were its own before; 0 if it has none of its own.
func (f *inForce) extent(have *entry, n int) int {
	if have == nil || !have.ours || have.value.Count == 0 {
		return 0
	}
	first, end := have.value.First, have.value.First+have.value.Count
	limit := min(first+uint32(n), f.slots.runs.size)
	if q := f.formerSlots(have); q != nil {
		end += q.count
	}
	if limit > end {
		end = f.slots.runs.nextTaken(end, limit)
	}
	return min(int(end-first), n)
}

// formerSlots returns the quarantined slots that follow those of an entry and were its own until it got fewer backends, nil if there are none. A program that
// still reads them has read the entry, so they may be overwritten like its other slots.
func (f *inForce) formerSlots(have *entry) *quarantined {
	for i := len(f.waiting) - 1; i >= 0; i-- {
		if q := &f.waiting[i]; q.count > 0 && q.of == have.value.First && q.first == have.value.First+have.value.Count {
			return q
		}
	}
	return nil
}

// extend assigns n slots that follow those of an entry to its next entry.
func (f *inForce) extend(next, have *entry, n uint32) {
	at := have.value.First + have.value.Count
	if q := f.formerSlots(have); q != nil {
		again := min(n, q.count)
		q.displaced = append(q.displaced, f.slots.contents[at:at+again]...)
		q.first, q.count = q.first+again, q.count-again
		q.owner.quarantined -= int(again)
		if q.owner != next.owner {
			q.owner.slots, next.owner.slots = q.owner.slots-int(again), next.owner.slots+int(again)
		}
		at, n = at+again, n-again
	}
	if n > 0 {
		f.slots.runs.take(at, n)
		next.owner.slots += int(n)
	}
}

// shortened returns n backends of a list: those in own, and then others, in the order of the list.
func shortened(list, own []uint32, n int) []uint32 {
	in := make(map[uint32]bool, len(own))
	for _, id := range own {
		in[id] = true
	}
	others := n
	for _, id := range list {
		if in[id] {
			others--
		}
	}
	short := make([]uint32, 0, n)
	for _, id := range list {
		if !in[id] {
			others--
		}
		if len(short) < n && (in[id] || others >= 0) {
			short = append(short, id)
		}
	}
	return short
}

// overwrite adds the writes of backends to the slots of the existing entry and to the free slots that follow them. Slots that keep their backend are not written,
// unless they are damaged.
func (f *inForce) overwrite(p *plan, next, have *entry, list []uint32, w *batches) {
	own, first, n := f.slots.list(have), have.value.First, uint32(len(list))
	next.value.First, next.value.Count = first, n
	if more := int(n) - len(own); more > 0 {
		f.extend(next, have, uint32(more))
	}
	slots := f.slots.list(next)
	for i, id := range list {
		if i < len(own) {
			if own[i] == id && !have.damaged {
				continue
			}
			f.slots.displaced[first] = append(f.slots.displaced[first], own[i])
		}
		slots[i] = id
		f.slots.refer(list[i:i+1], 1)
		w.slots.add(p, first+uint32(i), id)
	}
}

// undoOverwrite keeps an entry in force that shares slots with an entry that was not written. If the slots were overwritten, the next attempt writes all of them.
func (f *inForce) undoOverwrite(p *plan, next, have *entry) {
	if end := have.value.First + have.value.Count; next.value.Count > have.value.Count { // programs may still read slots that were quarantined
		more := next.value.Count - have.value.Count
		f.waiting = append(f.waiting, quarantined{until: f.later.now.Add(quarantine), first: end, count: more, of: have.value.First, owner: next.owner})
		next.owner.quarantined += int(more)
	}
	if p.slotsFailed || len(f.slots.displaced[have.value.First]) > 0 {
		have.damaged = true
	}
}

// withoutRemoved removes backends without a row from the entries of rows that failed. Otherwise these entries would name them as long as a map is full, and
// these backends would fill a map themselves.
func (w *writer) withoutRemoved(now time.Time) {
	if len(w.left.orphans) == 0 {
		return
	}
	var plans []*plan
	var b batches
	for key, x := range w.left.again.rows {
		if !x.exists || x.err == nil || x.later { // neither of the latter lasts
			continue
		}
		p := &plan{key: key}
		for _, scope := range []uint8{bpf.ScopeInternal, bpf.ScopeExternal} {
			w.known.planWithoutRemoved(p, scope, &b)
		}
		if p.next != [2]*entry{} {
			plans = append(plans, p)
		}
	}
	w.writeParts(&b)
	for _, p := range plans {
		if p.fatal != nil {
			w.known.undo(p)
		}
	}
	w.writeEntries(plans, bpf.ScopeInternal, now)
	w.writeEntries(plans, bpf.ScopeExternal, now)
	w.alive()
}

// unique returns the backends of a list that are not removed, each once: if only a part of the slots was overwritten, two may have the same backend.
func unique(own []uint32, removed func(uint32) bool) (list []uint32) {
	known := make(map[uint32]struct{}, len(own))
	for _, id := range own {
		if _, found := known[id]; !found && !removed(id) {
			known[id] = struct{}{}
			list = append(list, id)
		}
	}
	return list
}

// planWithoutRemoved plans the entry of a scope without backends that have no row. Its Maglev table names them too, so it gets none.
func (f *inForce) planWithoutRemoved(p *plan, scope uint8, w *batches) {
	have := f.entries[p.keyOf(scope)]
	if have == nil || !have.ours || have.value.Count == 0 {
		return
	}
	removed := func(id uint32) bool { b := f.backends[id]; return b != nil && !b.wanted }
	own := f.slots.list(have)
	if !slices.ContainsFunc(own, removed) && !slices.ContainsFunc(f.slots.displaced[have.value.First], removed) {
		return
	}
	next := &entry{value: have.value, owner: have.owner, wanted: have.wanted, ours: true}
	next.value.First, next.value.Maglev, next.value.MaglevSize = 0, 0, 0
	next.value.Flags &^= bpf.ServiceMaglev
	f.planSlots(p, next, have, unique(own, removed), w)
	p.next[scope] = next
}
