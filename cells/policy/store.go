package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policymap"
)

// store is all policy ids and their entries in the maps. It alone writes them. It is for one goroutine.
type store struct {
	maps  entryMaps
	alive func() // as that of the controller
	room  room   // of the maps
	byID  map[uint32]*held
	by    map[*policymap.Compiled]*held // by target
	// current are those that endpoints shall have; all others know nothing of what has changed since.
	current map[*policymap.Compiled]bool
	last    uint32                       // the id that was given last
	stale   map[entryKey]policymap.Entry // entries of an earlier run
	frozen  bool                         // no id may be changed in place: policies are known from a copy only
	moved   bool                         // since the last round an id was given, or entries were to be written
	old     room                         // how many these are
	slots   map[uint16]slot              // of endpoints of that run
	nested  map[uint32]bool              // policy ids of that run whose address ranges are nested
	// Who may be known to anybody: identities that every policy knows, identities that there are, and numbers of address
	// ranges in the map.
	announced, identities, ranges map[uint32]bool
	classes                       *identityClasses
}

func newStore(maps entryMaps) *store {
	return &store{maps: maps, byID: map[uint32]*held{}, by: map[*policymap.Compiled]*held{},
		current: map[*policymap.Compiled]bool{}, last: 1}
}

// restore reads what an earlier run left. Its ids are not given again while an endpoint may have one.
func (s *store) restore() (err error) {
	if s.room, err = s.maps.Room(); err != nil {
		return err
	}
	if s.slots, err = s.maps.Slots(); err != nil {
		return err
	}
	s.stale, s.nested, s.last = map[entryKey]policymap.Entry{}, map[uint32]bool{}, 1
	for _, slot := range s.slots {
		s.last = max(s.last, slices.Max(slot.ids[:]))
		for i, id := range slot.ids {
			if slot.shapes[i]&policymap.ShapeNested != 0 {
				s.nested[id] = true
			}
		}
	}
	var c cursor
	for end := false; !end; {
		var some map[entryKey]policymap.Entry
		if some, end, err = s.maps.Some(&c, batch); err != nil {
			return err
		}
		for k, e := range some {
			s.stale[k] = e
			s.old = s.old.plus(roomOf([]policymap.Entry{{Key: k.Key}}))
			s.last = max(s.last, k.ID)
		}
	}
	return nil
}

// next is an id that nobody has: not even a slot of an endpoint from before.
func (s *store) next() uint32 {
	for {
		s.last++
		if s.last < 2 {
			s.last = 2 // around: ids of an earlier run are gone by now, which would take four billion changes
		}
		if _, taken := s.byID[s.last]; !taken {
			return s.last
		}
	}
}

// used is how many entries the maps may have.
func (s *store) used() room {
	all := s.old
	for _, h := range s.byID {
		all = all.plus(h.size)
	}
	return all
}

// assign gives each compiled policy a policy id: the one that it has, the one of its only predecessor when that may become
// it in place, or a new one. successors says, for each id that endpoints have now, what these shall have.
func (s *store) assign(wanted iter.Seq[*policymap.Compiled], successors map[uint32]successors) {
	s.moved = false
	clear(s.by)
	clear(s.current)
	for id, h := range s.byID {
		h.users = successors[id].users()
		if h.is != nil { // else it is still written for the first time
			h.target = h.is
		}
		s.by[h.target] = h
	}
	before := s.before()
	for c := range wanted {
		s.current[c] = true
	}
	for c := range wanted {
		if s.by[c] != nil {
			continue
		}
		s.moved = true
		h := s.heir(c, successors)
		if h == nil {
			h = s.adopt(c, before, successors)
		}
		if h == nil {
			h = &held{id: s.next(), broken: true}
			s.byID[h.id] = h
		} else if s.by[h.is] == h {
			delete(s.by, h.is)
		}
		h.target, s.by[c] = c, h
		s.alive()
	}
}

// before sorts the entries of an earlier run by their policy ids.
func (s *store) before() map[uint32]map[policymap.Key]policymap.Entry {
	all := map[uint32]map[policymap.Key]policymap.Entry{}
	for k, e := range s.stale {
		if all[k.ID] == nil {
			all[k.ID] = map[policymap.Key]policymap.Entry{}
		}
		all[k.ID][k.Key] = e
	}
	return all
}

// adopt takes over an id of an earlier run that says what c says, when all its endpoints shall have c. So after a restart
// policies that are as they were need no room beside themselves.
func (s *store) adopt(c *policymap.Compiled, before map[uint32]map[policymap.Key]policymap.Entry, successors map[uint32]successors) *held {
	for _, id := range slices.Sorted(maps.Keys(before)) {
		next := successors[id]
		if !next.only(c) || !same(before[id], c) {
			continue
		}
		// It is written once more: what rules are called may have changed.
		h := &held{id: id, users: next.users(), broken: true}
		for k, e := range before[id] {
			delete(s.stale, entryKey{id, k})
			s.old = s.old.minus(roomOf([]policymap.Entry{e}))
			h.reserve([]policymap.Entry{e})
		}
		delete(before, id)
		s.byID[id] = h
		return h
	}
	return nil
}

// same tells whether entries say what c says.
func same(before map[policymap.Key]policymap.Entry, c *policymap.Compiled) bool {
	n := 0
	for e := range c.Entries() {
		have, found := before[e.Key]
		if !found || have.Deny != e.Deny {
			return false
		}
		n++
	}
	return n == len(before)
}

// heir finds an id whose endpoints all go over to c, and which may become c in place. An id whose policy some endpoint is about to get stays: that
// endpoint would be without a number until the next round.
func (s *store) heir(c *policymap.Compiled, successors map[uint32]successors) *held {
	if s.frozen {
		return nil
	}
	var found *held
	for id, next := range successors {
		h := s.byID[id]
		if h == nil || h.is == nil || h.target != h.is || s.current[h.is] || (found != nil && found.id < id) {
			continue
		}
		if !next.only(c) || !s.inPlace(h.is, c) {
			continue
		}
		found = h
	}
	return found
}

// inPlace tells whether from may become to entry by entry, without an instant in which something is allowed that neither
// allows, or denied that neither denies: so it is when all changes open, or all narrow. Entries about peers whom nobody
// knows yet, or no more, do not count.
func (s *store) inPlace(from, to *policymap.Compiled) bool {
	if to.Shape()&^from.Shape() != 0 {
		return false // the datapath does not look for entries of the new class
	}
	d := to.Diff(from)
	if len(d.Changed) > 0 || s.anyStop(d.AddedDenies) || s.anyStop(d.Removed) {
		return false
	}
	opens := s.anyKnown(d.AddedAllows, false) || s.anyKnown(d.Removed, true)
	return !(opens && s.narrows(d))
}

// anyKnown tells whether entries with a verdict are about somebody who may be known already.
func (s *store) anyKnown(list []policymap.Entry, deny bool) bool {
	return slices.ContainsFunc(list, func(e policymap.Entry) bool { return e.Deny == deny && !s.fresh(e.Kind, e.Identity) })
}

// anyStop reports whether entries stop what is said of the address ranges around one that may be known already. That opens what is denied around it, and
// narrows what is allowed.
func (s *store) anyStop(list []policymap.Entry) bool {
	return slices.ContainsFunc(list, func(e policymap.Entry) bool { return e.IsStop() && !s.fresh(e.Kind, e.Identity) })
}

// narrows tells whether known peers may be denied what they were allowed.
func (s *store) narrows(d policymap.Diff) bool {
	return len(d.Changed) > 0 || s.anyKnown(d.AddedDenies, true) || s.anyKnown(d.Removed, false)
}

// fresh tells whether nobody is known by an identity yet, or any more: entries about it match nothing.
func (s *store) fresh(kind policymap.Kind, identity uint32) bool {
	switch kind {
	case policymap.Identity:
		return !s.announced[identity] || !s.identities[identity]
	case policymap.Class:
		return !s.classes.inUse(identity)
	case policymap.CIDR, policymap.CIDROutside:
		return !s.ranges[identity]
	}
	return false
}

// free removes an id that no row has any more, allows before denies: the slot of an endpoint that has just gone may name it for a
// moment more.
func (s *store) free(h *held) error {
	list := slices.Collect(maps.Values(h.extra))
	if h.is != nil {
		list = slices.AppendSeq(list, h.is.Entries())
	}
	slices.SortStableFunc(list, func(a, b policymap.Entry) int { return deniesFirst(b, a) })
	if err := s.remove(h, list); err != nil {
		return err
	}
	delete(s.byID, h.id)
	return nil
}

// former is an id of an earlier run that an endpoint still has; 0 when none.
func (s *store) former(used map[uint32]successors) (id uint32) {
	for k := range s.stale {
		if len(used[k.ID]) > 0 {
			id = max(id, k.ID)
		}
	}
	return id
}

// sweep removes what an earlier run left, allows before denies, but for ids that endpoints still have.
func (s *store) sweep(used map[uint32]successors) error {
	for _, denies := range []bool{false, true} {
		for k, e := range s.stale {
			if len(used[k.ID]) > 0 || e.Deny != denies {
				continue
			}
			if err := s.maps.Delete(k.ID, k.Key); err != nil {
				return fmt.Errorf("delete an entry of policy %d of an earlier run: %w", k.ID, err)
			}
			delete(s.stale, k)
			s.old = s.old.minus(roomOf([]policymap.Entry{e}))
		}
	}
	return nil
}

// maxCostly is how many policies an error about full maps names.
const maxCostly = 3

// costliest names what takes most of the maps.
func (s *store) costliest() string {
	all := make([]*held, 0, len(s.byID))
	size := func(h *held) int {
		if h.target == nil {
			return 0
		}
		entries, ranges := h.target.Len()
		return entries + ranges
	}
	for _, h := range s.byID {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *held) int { return cmp.Or(size(b)-size(a), cmp.Compare(a.id, b.id)) })
	var texts []string
	for _, h := range all[:min(len(all), maxCostly)] {
		texts = append(texts, fmt.Sprintf("policy %d with %d entries (%s)", h.id, size(h), shorten(h.policies)))
	}
	return strings.Join(texts, "; ")
}
