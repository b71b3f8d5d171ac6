package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/waggle-net/waggle/pkg/policymap"
)

// errFull is why a policy is not written.
var errFull = errors.New("the maps are full")

// write makes all ids what they shall become. What makes room comes first, then what only denies, then the rest, small ones
// before large ones. An id that does not fit stays what it is.
func (s *store) write() {
	var work []*held
	for _, h := range s.byID {
		h.err, h.open, h.change = nil, false, policymap.Diff{}
		if h.target != nil && !h.complete(h.target) {
			h.change = h.target.Diff(h.is)
			work, s.moved = append(work, h), true
		}
	}
	slices.SortFunc(work, func(a, b *held) int {
		return cmp.Or(cmp.Compare(len(a.change.AddedAllows), len(b.change.AddedAllows)),
			cmp.Compare(len(a.change.AddedDenies), len(b.change.AddedDenies)), cmp.Compare(a.id, b.id))
	})
	for _, h := range work {
		s.bring(h)
		s.alive()
	}
}

// bring makes one id its target, if there is room.
func (s *store) bring(h *held) {
	d, mended := h.change, h.is != nil && h.broken
	if h.is == nil {
		h.name()
	}
	need := h.lacks(d.AddedDenies).plus(h.lacks(d.AddedAllows))
	free := s.room.minus(s.used())
	if !need.fits(free) && len(d.AddedAllows) == 0 && len(d.Removed) > 0 {
		if h.err = s.shrink(h, nil); h.err != nil { // what goes makes room for what denies
			return
		}
		free = free.plus(roomOf(d.Removed))
	}
	if !need.fits(free) {
		s.refuse(h, need)
		return
	}
	var remains []policymap.Entry // of changes that did not come to their end
	if len(h.extra) > 0 {
		remains = h.beyond()
	}
	h.reserve(d.AddedDenies)
	h.reserve(d.AddedAllows)
	write := slices.Concat(d.AddedDenies, d.Changed, d.Renamed, d.AddedAllows)
	if h.broken {
		write = slices.SortedStableFunc(h.target.Entries(), deniesFirst)
	}
	if h.err = s.put(h, write); h.err != nil {
		h.open = true
		return
	}
	if h.err = s.shrink(h, remains); h.err != nil {
		return
	}
	h.narrowed = h.narrowed || mended || h.is != nil && s.narrows(d) // flows may have been judged without what was missing
	if h.is != nil {
		h.name()
	}
	h.is, h.extra, h.broken = h.target, nil, false
	entries, ranges := h.is.Len()
	h.size = room{entries, ranges}
}

// shrink removes what the target does not have and what remains of other changes, allows before denies. Until the target is
// reached the id counts as broken: some of what it is may be missing.
func (s *store) shrink(h *held, remains []policymap.Entry) error {
	remove := slices.Concat(h.change.Removed, remains)
	slices.SortStableFunc(remove, func(a, b policymap.Entry) int { return deniesFirst(b, a) })
	if err := s.remove(h, remove); err != nil {
		return err
	}
	if len(remove) > 0 {
		h.broken, h.narrowed = true, h.narrowed || s.narrows(h.change)
	}
	return nil
}

// refuse says that an id does not fit. Its denies are written all the same, if they alone fit: they open nothing, and
// peers whom no policy knows yet must not be let in without them.
func (s *store) refuse(h *held, need room) {
	free := s.room.minus(s.used())
	h.err = fmt.Errorf("%w: it needs %d more entries and %d more ranges of ports, and %d and %d are free", errFull, need.entries,
		need.ranges, free.entries, free.ranges)
	if h.is == nil {
		return // nobody has it
	}
	denies := h.change.AddedDenies
	if h.lacks(denies).fits(free) {
		h.reserve(denies)
		if err := s.put(h, denies); err == nil {
			h.narrowed = h.narrowed || len(denies) > 0
			return
		}
	}
	h.open = len(denies) > 0
}

// put writes entries of an id.
func (s *store) put(h *held, list []policymap.Entry) error {
	for _, e := range list {
		if err := s.maps.Put(h.id, e); err != nil {
			h.broken = true
			return fmt.Errorf("write an entry of policy %d: %w", h.id, err)
		}
	}
	return nil
}

func (s *store) remove(h *held, list []policymap.Entry) error {
	for _, e := range list {
		if err := s.maps.Delete(h.id, e.Key); err != nil {
			h.broken = true
			return fmt.Errorf("delete an entry of policy %d: %w", h.id, err)
		}
	}
	return nil
}

// bequeath gives what an id says of parent to child as well, in each id that endpoints may still have and that does not know
// child: until they have their new policies, child means to them what parent means. Where ranges are nested it does so anyway. Parent 0 is no CIDR at all.
func (s *store) bequeath(parent, child uint32) error {
	if parent == 0 {
		return nil
	}
	for _, h := range s.byID {
		if h.is == nil || s.current[h.is] || h.is.Nested() {
			continue
		}
		var heirs []policymap.Entry
		for e := range h.is.Entries() {
			heirs = inherit(heirs, e, parent, child)
		}
		for _, e := range h.extra { // what parent itself has inherited
			heirs = inherit(heirs, e, parent, child)
		}
		if !h.lacks(heirs).fits(s.room.minus(s.used())) {
			return fmt.Errorf("policy %d, which is still in use, does not know an address range: %w", h.id, errFull)
		}
		h.reserve(heirs)
		slices.SortStableFunc(heirs, deniesFirst)
		if err := s.put(h, heirs); err != nil {
			return err
		}
	}
	return s.bequeathBefore(parent, child)
}

func inherit(heirs []policymap.Entry, e policymap.Entry, parent, child uint32) []policymap.Entry {
	if e.Identity != parent || e.Kind != policymap.CIDR && e.Kind != policymap.CIDROutside {
		return heirs
	}
	e.Identity = child
	return append(heirs, e)
}

// bequeathBefore does the same for the ids of an earlier run.
func (s *store) bequeathBefore(parent, child uint32) error {
	for k, before := range s.stale {
		if s.nested[k.ID] {
			continue
		}
		for _, e := range inherit(nil, before, parent, child) {
			heir := entryKey{k.ID, e.Key}
			if _, there := s.stale[heir]; there {
				continue
			}
			need := roomOf([]policymap.Entry{e})
			if !need.fits(s.room.minus(s.used())) {
				return fmt.Errorf("policy %d of an earlier run, which is still in use, does not know an address range: %w", k.ID, errFull)
			}
			if err := s.maps.Put(k.ID, e); err != nil {
				return fmt.Errorf("write an entry of policy %d of an earlier run: %w", k.ID, err)
			}
			s.stale[heir], s.old = e, s.old.plus(need)
		}
	}
	return nil
}
