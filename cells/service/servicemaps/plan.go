package servicemaps

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/maglev"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// plan is the work that brings one row of frontends into force.
type plan struct {
	row      *frontends.Frontend
	owner    *namespace
	revision statedb.Revision
	key      bpf.ServiceKey // of scope external
	// next are the entries to write, by scope; nil leaves the existing entry unchanged.
	next [2]*entry
	kept [2]bool // the existing entry is current
	// fatal keeps the previous state in force. If it is nil, the row comes into force, and short is the error of a missing part.
	fatal, short error
	waits, quota capacity
	transient    bool   // the row also fails for another reason
	before       uint32 // id of the existing entry
	// slotsFailed means that slots could not be written; fewer means that the row has fewer slots than backends.
	slotsFailed, fewer bool
	// close means that a range of a row that denies could not be written: the frontend serves no external client.
	close bool
}

// batches are the writes to other maps that must precede the writes of entries.
type batches struct {
	slots   writes[uint32, uint32, *plan]
	maglev  writes[uint32, uint32, *table]
	members writes[bpf.AffinityMember, uint32, *plan]
	ranges  writes[bpf.SourceRangeKey, uint32, *plan]
}

// keyOf returns the key of the entry of a scope.
func (p *plan) keyOf(scope uint8) bpf.ServiceKey {
	key := p.key
	key.Scope = scope
	return key
}

func (p *plan) fail(err error) {
	p.record(err)
	p.fatal = cmp.Or(p.fatal, err)
}

// recordMissing records a missing part; a status reports only the first.
func (p *plan) recordMissing(err error) {
	p.record(err)
	p.short = cmp.Or(p.short, err)
}

// record records what a row waits for. It must know all errors: a row may wait for several.
func (p *plan) record(err error) {
	waits := waitsFor(err)
	p.waits |= waits
	p.quota |= quotaFor(err)
	p.transient = p.transient || waits == 0
}

// err returns why the row is not completely in force, nil if it is.
func (p *plan) err() error { return cmp.Or(p.fatal, p.short) }

// inForce reports whether the datapath serves all clients of the row.
func (p *plan) inForce() bool { return p.fatal == nil && !p.close }

// progressed reports whether the attempt has brought the row into force, completely or not.
func (p *plan) progressed() bool { return p.err() == nil || p.inForce() && !p.row.InForce }

// scopes returns the scopes of a row, in the order in which their entries are written: the external entry refers to the internal one.
func scopes(row *frontends.Frontend) []uint8 {
	if row.TwoScopes {
		return []uint8{bpf.ScopeInternal, bpf.ScopeExternal}
	}
	return []uint8{bpf.ScopeExternal}
}

// valueOf returns the entry of a scope without the position of its slots and table.
func valueOf(row *frontends.Frontend, scope uint8) bpf.Service {
	v := bpf.Service{Id: row.ID, Affinity: row.Affinity}
	v.Flags = only(row.Drop, bpf.ServiceDrop) | only(row.Kind == frontends.NodePort, bpf.ServiceNodePort) |
		only(row.Loopback, bpf.ServiceLoopback) | only(row.Affinity > 0, bpf.ServiceAffinity)
	if scope == bpf.ScopeExternal {
		v.Flags |= only(row.TwoScopes, bpf.ServiceTwoScopes) | only(row.Outside, bpf.ServiceOutside) |
			only(row.Ranges != nil, bpf.ServiceRanges) | only(row.Ranges != nil && row.Deny, bpf.ServiceRangesDeny) |
			only(row.LocalOnly, bpf.ServiceLocalOnly)
	}
	return v
}

// only returns the flag if it applies, otherwise 0.
func only[F ~uint8 | ~uint32](applies bool, flag F) F {
	if applies {
		return flag
	}
	return 0
}

// listIn returns the desired backends of a scope.
func listIn(row *frontends.Frontend, scope uint8) []uint32 {
	if scope == bpf.ScopeInternal {
		return row.Internal
	}
	return row.Backends
}

// listOf returns the backends of a scope that are in the map, and the error of a missing one. The argument failed holds the backends that could not be
// written.
func (f *inForce) listOf(row *frontends.Frontend, scope uint8, failed map[uint32]failure) (list []uint32, err error) {
	list = listIn(row, scope)
	missing := func(id uint32) bool { return f.backends[id] == nil }
	at := slices.IndexFunc(list, missing)
	if at < 0 {
		return list, nil
	}
	err = cmp.Or(failed[list[at]].err, fmt.Errorf("backend %d is not in the map %s", list[at], bpf.MapBackends))
	return slices.DeleteFunc(slices.Clone(list), missing), &noCapacity{of: aBackend, error: err}
}

// plan determines the writes for a row, and reserves slots and tables for them.
func (f *inForce) plan(p *plan, failed map[uint32]failure, w *batches) {
	if have := f.entries[p.key]; have != nil {
		p.before = have.value.Id
	}
	for _, scope := range scopes(p.row) {
		f.planEntry(p, scope, failed, w)
		if p.fatal != nil {
			f.undo(p)
			return
		}
	}
	f.planBelongings(p, w)
}

func (f *inForce) planEntry(p *plan, scope uint8, failed map[uint32]failure, w *batches) {
	have := f.entries[p.keyOf(scope)]
	if have == nil {
		if err := f.noEntry(p.owner); err != nil {
			p.fail(err)
			return
		}
	}
	list, missing := f.listOf(p.row, scope, failed)
	if missing != nil {
		p.recordMissing(missing)
		if len(list) == 0 && have != nil && have.value.Count > 0 {
			p.fail(missing) // previous backends that still have a row are better than none, see [writer.withoutRemoved]
			return
		}
	}
	next := &entry{value: valueOf(p.row, scope), owner: p.owner, wanted: true, ours: true}
	list, same := f.planSlots(p, next, have, list, w)
	if p.fatal != nil {
		return
	}
	if p.row.Maglev && p.row.Outside && scope == bpf.ScopeExternal && len(list) > 1 {
		f.planTable(p, next, have, list, w)
	}
	if same && have.value == next.value && !have.changed {
		f.tables.drop(next.table) // the table that the entry has
		p.kept[scope] = true
		return
	}
	p.next[scope] = next
	if have == nil {
		p.owner.entries++
		f.planned++
	}
}

// planSlots assigns backend slots to an entry and keeps its current slots if their backends are unchanged. It returns the backends that got slots, and whether
// the slots stay the same.
func (f *inForce) planSlots(p *plan, next, have *entry, list []uint32, w *batches) (fits []uint32, same bool) {
	next.value.Count = uint32(len(list))
	if have != nil && have.ours && !have.damaged && have.value.Count == next.value.Count {
		if slices.Equal(f.slots.list(have), list) {
			next.value.First = have.value.First
			return list, true
		}
		if len(list) > 0 && !anyIn(f.slots.list(have)) { // the array was created again, and no program reads it yet
			next.value.First = have.value.First
			f.slots.refer(f.slots.list(next), -1)
			f.putSlots(p, next, list, w)
			return list, true
		}
	}
	if len(list) == 0 {
		return nil, false
	}
	if f.mayOverwrite(next, have, list) {
		return list, f.overwriteChanged(p, next, have, list, w)
	}
	first, found := uint32(0), false
	if f.mayTake(next.owner, len(list), f.slotsOf(have)) {
		first, found = f.slots.runs.get(uint32(len(list)))
	}
	if !found {
		return f.reuseSlots(p, next, have, list, w)
	}
	next.value.First = first
	next.owner.slots += len(list)
	f.putSlots(p, next, list, w)
	return list, false
}

// slotsOf returns the number of slots of an entry, which may be nil.
func (f *inForce) slotsOf(e *entry) int {
	if e == nil {
		return 0
	}
	return len(f.slots.list(e))
}

// putSlots adds the writes of slots, and counts the backends in them.
func (f *inForce) putSlots(p *plan, next *entry, list []uint32, w *batches) {
	copy(f.slots.list(next), list)
	f.slots.refer(list, 1)
	for i, id := range list {
		w.slots.add(p, next.value.First+uint32(i), id)
	}
}

// planTable assigns a Maglev table to an entry. If there is no free table, the entry has none.
func (f *inForce) planTable(p *plan, next, have *entry, list []uint32, w *batches) {
	use := func(t *table) {
		t.users++
		next.table = t
		next.value.Maglev, next.value.MaglevSize = t.at, t.size
		next.value.Flags |= bpf.ServiceMaglev
	}
	key := keyOf(list)
	if known := f.tables.byKey[key]; known != nil {
		use(known)
		return
	}
	restored := have != nil && have.table != nil && have.table.key == "" && !have.damaged && f.tables.fits(have.table)
	if !restored && !f.tables.hasFree() {
		f.noTable(p)
		return
	}
	names := make([]string, len(list))
	for i, id := range list {
		names[i] = bpf.AddressOfBackend(f.backends[id].value).String()
	}
	contents := maglev.Table(names, int(f.tables.size), f.tables.seed)
	for slot, i := range contents {
		contents[slot] = list[i]
	}
	if restored {
		sum := f.tables.sum(contents)
		if have.table.sum == sum || have.table.empty {
			f.tables.know(have.table, key)
			use(have.table)
			if have.table.sum != sum {
				have.table.sum, have.table.empty = sum, false
				f.putTable(have.table, contents, w)
			}
			return
		}
	}
	made, found := f.tables.get(key, contents)
	if !found {
		f.noTable(p)
		return
	}
	use(made)
	f.putTable(made, contents, w)
}

func (f *inForce) noTable(p *plan) {
	f.rejected[bpf.MapMaglev]++
	p.recordMissing(&noCapacity{of: capacityOf(bpf.MapMaglev), error: fmt.Errorf("the map %s has no space for another table, of %d: raise --bpf-lb-maglev-map-max; "+
		"backends are selected at random", bpf.MapMaglev, len(f.tables.users))})
}

func (f *inForce) putTable(t *table, contents []uint32, w *batches) {
	for i, id := range contents {
		w.maglev.add(t, t.at+uint32(i), id)
	}
}

// undo frees the slots and tables that were reserved for a row that cannot come into force. No program has used them.
func (f *inForce) undo(p *plan) {
	for scope, next := range p.next {
		have := f.entries[p.keyOf(uint8(scope))]
		if p.kept[scope] && p.slotsFailed {
			have.damaged = true
		}
		if next == nil {
			continue
		}
		if !next.shares(have) {
			f.slots.drop(next.value.First, next.value.Count)
			next.owner.slots -= int(next.value.Count)
		} else {
			f.undoOverwrite(p, next, have)
		}
		f.tables.drop(next.table)
		if have == nil {
			next.owner.entries--
			f.planned--
		}
		p.next[scope] = nil
	}
}

// planBelongings adds the members and ranges of a row. Unused ones are removed after the entries are in force.
func (f *inForce) planBelongings(p *plan, w *batches) {
	id := p.row.ID
	b := f.holdings.of[id]
	if b == nil && p.row.Affinity == 0 && len(p.row.Ranges) == 0 {
		return
	}
	if b == nil {
		b = f.holdings.get(id)
	}
	b.of, b.wanted, b.unsettled = p.key, true, true
	b.wantNothing()
	if p.row.Affinity > 0 {
		f.planMembers(p, b, w)
	}
	for _, prefix := range p.row.Ranges {
		r := bpf.SourceRange{Prefix: prefix.Masked(), Deny: p.row.Deny}
		if _, there := b.ranges[r]; !there {
			w.ranges.add(p, bpf.NewSourceRangeKey(id, r), 1)
		}
		enter(b.ranges, r, true, &f.holdings.ranges)
	}
}

// planMembers adds scopes to backends. A backend keeps the bits of former scopes while an entry may still name it.
func (f *inForce) planMembers(p *plan, b *belongings, w *batches) {
	for _, scope := range scopes(p.row) {
		for _, backend := range listIn(p.row, scope) {
			m := b.members[backend]
			m.wants |= 1 << scope
			enter(b.members, backend, m, &f.holdings.members)
		}
	}
	for backend, m := range b.members {
		if m.wants&^m.has != 0 {
			w.members.add(p, bpf.AffinityMember{Service: p.row.ID, Backend: backend}, m.has|m.wants)
		}
	}
}

// withoutTable removes the reference to a Maglev table that could not be written from its entry.
func (f *inForce) withoutTable(p *plan) {
	have, next := f.entries[p.key], p.next[bpf.ScopeExternal]
	if next != nil && next.table != nil && next.table.err != nil {
		p.recordMissing(next.table.err)
		f.tables.forget(next.table)
		f.tables.drop(next.table)
		next.table = nil
		next.value.Maglev, next.value.MaglevSize = 0, 0
		next.value.Flags &^= bpf.ServiceMaglev
	}
	if p.kept[bpf.ScopeExternal] && have.table != nil && have.table.err != nil {
		p.recordMissing(have.table.err)
		f.tables.forget(have.table)
		have.damaged = true
	}
}

// closeOutside changes the external entry of a plan to allow only its ranges, of which a row that denies has none. The rest of the row comes into force, so a
// full map neither delays new backends nor keeps the ranges of a previous policy in force.
func (f *inForce) closeOutside(p *plan) {
	have, next := f.entries[p.key], p.next[bpf.ScopeExternal]
	if next == nil { // the entry is kept
		copied := *have
		if next = &copied; next.table != nil {
			next.table.users++
		}
		next.wanted = true
	}
	next.value.Flags &^= bpf.ServiceRangesDeny
	p.next[bpf.ScopeExternal], p.kept[bpf.ScopeExternal] = next, false
	if have != nil && !have.changed && have.value == next.value {
		f.tables.drop(next.table)
		p.next[bpf.ScopeExternal], p.kept[bpf.ScopeExternal] = nil, true
	}
}
