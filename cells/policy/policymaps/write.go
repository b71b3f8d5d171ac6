package policymaps

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// errFull is the reason for a policy that does not fit into the maps.
var errFull = errors.New("the maps are full")

// errQuota is the reason for a policy that does not fit into the quota of its namespace.
var errQuota = errors.New("the quota of its namespace is used up")

// errRules is the reason for a policy that is not compiled, because the rules of all policies of its endpoints or of its namespace together exceed a limit.
var errRules = errors.New("the policies of its endpoints have too many rules or peers")

// write changes all ids to their targets: first changes that free entries, then changes that only deny, then the others, small ones before large ones. An id
// that does not fit stays unchanged.
func (s *store) write() {
	var work []*mapPolicy
	for _, h := range s.byID {
		h.err, h.open, h.change = nil, false, policycompiler.Diff{}
		if h.target != nil && !h.complete(h.target) {
			if !h.target.TooLarge() {
				h.change = h.target.Diff(h.is)
			}
			work, s.moved = append(work, h), true
		}
	}
	slices.SortFunc(work, func(a, b *mapPolicy) int {
		return cmp.Or(cmp.Compare(len(a.change.AddedAllows), len(b.change.AddedAllows)),
			cmp.Compare(len(a.change.AddedDenies), len(b.change.AddedDenies)), cmp.Compare(a.id, b.id))
	})
	for _, h := range work {
		s.apply(h)
		s.alive()
	}
}

// apply changes one id to its target if the maps have the capacity.
func (s *store) apply(h *mapPolicy) {
	d, mended := h.change, h.is != nil && h.broken
	if h.is == nil && h.policies == nil { // not with each attempt
		h.name()
	}
	if exceeded := h.target.Exceeded(); exceeded != "" {
		h.err = fmt.Errorf("%w: together, more than %s", errRules, exceeded)
		return
	}
	if h.target.TooLarge() { // no endpoint has the id: see [store.inPlace]
		why := errFull
		if s.hasQuota(h) {
			why = errQuota
		}
		h.err = fmt.Errorf("%w: it needs more than the %d entries or the %d ranges of ports that the maps hold", why, s.capacity.entries, s.capacity.ranges)
		return
	}
	need := h.missingCapacity(d.AddedDenies).plus(h.missingCapacity(d.AddedAllows))
	why := s.fit(h, need)
	if why != nil && len(d.AddedAllows) == 0 && len(d.Removed) > 0 {
		if h.err = s.shrink(h, nil); h.err != nil { // removed entries free the capacity for denies
			return
		}
		why = s.fit(h, need.minus(capacityOf(d.Removed)))
	}
	if why != nil {
		s.reject(h, need, why)
		return
	}
	var remains []policycompiler.Entry // entries of incomplete changes
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
	h.narrowed = h.narrowed || mended || h.is != nil && s.narrows(d) // flows may have been evaluated without the missing entries
	if h.is != nil {
		h.name()
	}
	h.is, h.extra, h.broken, h.narrowedTo = h.target, nil, false, nil
	entries, ranges := h.is.Len()
	h.size = capacity{entries, ranges}
}

// shrink removes the entries that the target does not have and the remains of other changes, allows before denies. Until the id has its target, it counts as
// broken, because entries of is may be missing.
func (s *store) shrink(h *mapPolicy, remains []policycompiler.Entry) error {
	remove := slices.Concat(h.change.Removed, remains)
	slices.SortStableFunc(remove, func(a, b policycompiler.Entry) int { return deniesFirst(b, a) })
	if err := s.remove(h, remove); err != nil {
		return err
	}
	if len(remove) > 0 {
		h.broken = true
		h.narrow(s.narrows(h.change))
	}
	return nil
}

// reject records that an id does not fit. It still writes the denies if they fit without the allows: they open nothing, and peers that no policy knows yet
// must not be allowed without them.
func (s *store) reject(h *mapPolicy, need capacity, why error) {
	free := s.capacity.minus(s.used())
	if why == errQuota {
		free = s.quota.minus(s.usedBy(h.target.Namespace()))
	}
	h.err = fmt.Errorf("%w: it needs %d more entries and %d more ranges of ports, and %d and %d are free", why, need.entries,
		need.ranges, max(free.entries, 0), max(free.ranges, 0))
	if h.is == nil {
		return // no endpoint has the id
	}
	denies := h.change.AddedDenies
	if s.fit(h, h.missingCapacity(denies)) == nil {
		h.reserve(denies)
		if err := s.put(h, denies); err == nil {
			h.narrow(len(denies) > 0)
			return
		}
	}
	h.open = len(denies) > 0
}

// put writes entries of an id.
func (s *store) put(h *mapPolicy, list []policycompiler.Entry) error {
	for _, e := range list {
		if err := s.maps.Put(h.id, e); err != nil {
			h.broken = true
			return fmt.Errorf("write an entry of policy %d: %w", h.id, err)
		}
	}
	return nil
}

func (s *store) remove(h *mapPolicy, list []policycompiler.Entry) error {
	for _, e := range list {
		if err := s.maps.Delete(h.id, e.Key); err != nil {
			h.broken = true
			return fmt.Errorf("delete an entry of policy %d: %w", h.id, err)
		}
	}
	return nil
}

// inheritRange copies the entries about parent to child, in each id that endpoints may still have and that does not know child: until these endpoints get their
// new policies, both ranges have the same verdicts. Policies with nested ranges need no copies. Parent 0 means that no CIDR contains child.
func (s *store) inheritRange(parent, child uint32) error {
	if parent == 0 {
		return nil
	}
	for _, h := range s.byID {
		if h.is == nil || s.current[h.is] || h.is.Nested() {
			continue
		}
		var inherited []policycompiler.Entry
		for e := range h.is.Entries() {
			inherited = inherit(inherited, e, parent, child)
		}
		for _, e := range h.extra { // entries that parent has inherited
			inherited = inherit(inherited, e, parent, child)
		}
		if !h.missingCapacity(inherited).fits(s.capacity.minus(s.used())) {
			return fmt.Errorf("policy %d, which is still in use, does not know an address range: %w", h.id, errFull)
		}
		h.reserve(inherited)
		slices.SortStableFunc(inherited, deniesFirst)
		if err := s.put(h, inherited); err != nil {
			return err
		}
	}
	return s.inheritStale(parent, child)
}

func inherit(inherited []policycompiler.Entry, e policycompiler.Entry, parent, child uint32) []policycompiler.Entry {
	if e.Identity != parent || e.Kind != policycompiler.CIDR && e.Kind != policycompiler.CIDROutside {
		return inherited
	}
	e.Identity = child
	return append(inherited, e)
}

// inheritStale does the same for the ids of the previous run.
func (s *store) inheritStale(parent, child uint32) error {
	for k, before := range s.stale {
		if s.nested[k.ID] {
			continue
		}
		for _, e := range inherit(nil, before, parent, child) {
			inherited := entryKey{k.ID, e.Key}
			if _, there := s.stale[inherited]; there {
				continue
			}
			need := capacityOf([]policycompiler.Entry{e})
			if !need.fits(s.capacity.minus(s.used())) {
				return fmt.Errorf("policy %d of the previous run, which is still in use, does not know an address range: %w", k.ID, errFull)
			}
			if err := s.maps.Put(k.ID, e); err != nil {
				return fmt.Errorf("write an entry of policy %d of the previous run: %w", k.ID, err)
			}
			s.stale[inherited], s.old = e, s.old.plus(need)
		}
	}
	return nil
}
