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

// extent returns how many slots, up to n, an entry would have with the free slots that follow its own; 0 if it has none of its own.
func (f *inForce) extent(have *entry, n int) int {
	if have == nil || !have.ours || have.value.Count == 0 {
		return 0
	}
	first, end := have.value.First, have.value.First+have.value.Count
	if limit := min(first+uint32(n), f.slots.runs.size); limit > end {
		end = f.slots.runs.nextTaken(end, limit)
	}
	return min(int(end-first), n)
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

// overwrite adds the writes of backends to the slots of the existing entry and to the free slots that follow them.
func (f *inForce) overwrite(p *plan, next, have *entry, list []uint32, w *batches) {
	own, first, n := f.slots.list(have), have.value.First, uint32(len(list))
	next.value.First, next.value.Count = first, n
	if more := int(n) - len(own); more > 0 {
		f.slots.runs.take(first+have.value.Count, uint32(more))
		next.owner.slots += more
	}
	f.slots.displaced[first] = append(f.slots.displaced[first], own[:min(len(own), len(list))]...)
	f.putSlots(p, next, list, w)
}

// undoOverwrite keeps an entry in force that shares slots with an entry that was not written. If the slots were overwritten, the next attempt writes all of them.
func (f *inForce) undoOverwrite(p *plan, next, have *entry) {
	if more := int(next.value.Count) - int(have.value.Count); more > 0 {
		f.slots.drop(have.value.First+have.value.Count, uint32(more))
		next.owner.slots -= more
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

// planWithoutRemoved plans the entry of a scope without backends that have no row. Its Maglev table names them too, so it gets none.
func (f *inForce) planWithoutRemoved(p *plan, scope uint8, w *batches) {
	have := f.entries[p.keyOf(scope)]
	if have == nil || !have.ours {
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
	f.planSlots(p, next, have, slices.DeleteFunc(slices.Clone(own), removed), w)
	p.next[scope] = next
}
