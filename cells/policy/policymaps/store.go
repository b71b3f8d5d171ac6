package policymaps

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/printable"
)

// store assigns the policy ids and writes their entries to the maps. It is not safe for concurrent use; the verify job reads it with [controller].mu held.
type store struct {
	maps     entryMaps
	alive    func()   // reports progress, see [controller]
	capacity capacity // capacity of the maps
	quota    capacity // of the policies of one namespace; the zero value for none
	byID     map[uint32]*mapPolicy
	by       map[*policycompiler.Compiled]*mapPolicy // by target
	// current has the desired policies of the endpoints. All other policies are outdated.
	current map[*policycompiler.Compiled]bool
	last    uint32                            // last assigned id
	stale   map[entryKey]policycompiler.Entry // entries of the previous run
	frozen  bool                              // no id may be changed in place, because policies come from the copy on disk only
	moved   bool                              // this round has assigned an id or has entries to write
	old     capacity                          // number of entries in stale
	nested  map[uint32]bool                   // policy ids of the previous run with nested address ranges
	peers   peerState
}

// peerState reports by which identities peers may be known. The controller implements it, because it owns this state together with its inputs.
type peerState interface {
	// mayHave reports whether a peer may be known by an identity.
	mayHave(id uint32) bool
	// mayMatch reports whether entries about an identity, class or address range may match a packet.
	mayMatch(kind policycompiler.Kind, identity uint32) bool
}

func newStore(maps entryMaps) *store {
	return &store{maps: maps, byID: map[uint32]*mapPolicy{}, by: map[*policycompiler.Compiled]*mapPolicy{},
		current: map[*policycompiler.Compiled]bool{}, last: 1}
}

// restore reads the entries of the previous run. It returns the slots of that run, whose ids are not assigned again while an endpoint may have one.
func (s *store) restore() (slots map[uint16]slot, err error) {
	if s.capacity, err = s.maps.Capacity(); err != nil {
		return nil, err
	}
	if slots, err = s.maps.Slots(); err != nil {
		return nil, err
	}
	s.stale, s.nested, s.last = map[entryKey]policycompiler.Entry{}, map[uint32]bool{}, 1
	for _, slot := range slots {
		s.last = max(s.last, slices.Max(slot.ids[:]))
		for i, id := range slot.ids {
			if slot.shapes[i]&policycompiler.ShapeNested != 0 {
				s.nested[id] = true
			}
		}
	}
	var c cursor
	for end := false; !end; {
		var some map[entryKey]policycompiler.Entry
		if some, end, err = s.maps.Some(&c, batch); err != nil {
			return nil, err
		}
		for k, e := range some {
			s.stale[k] = e
			s.old = s.old.plus(capacityOf([]policycompiler.Entry{{Key: k.Key}}))
			s.last = max(s.last, k.ID)
		}
	}
	return slots, nil
}

// next returns a new id, which no entry and no slot of an endpoint names.
func (s *store) next() uint32 {
	for {
		s.last++
		if s.last < 2 {
			s.last = 2 // wrapped around: ids of the previous run are removed by now, because that takes four billion changes
		}
		if _, taken := s.byID[s.last]; !taken {
			return s.last
		}
	}
}

// used returns the largest number of entries that the maps may have now.
func (s *store) used() capacity {
	all := s.old
	for _, h := range s.byID {
		all = all.plus(h.size)
	}
	return all
}

// usedBy returns the number of entries of the policies of a namespace.
func (s *store) usedBy(namespace string) (all capacity) {
	for _, h := range s.byID {
		if h.target != nil && h.target.Namespace() == namespace {
			all = all.plus(h.size)
		}
	}
	return all
}

// hasQuota reports whether a quota limits an id. Cluster-wide policies have none, except where an endpoint has a policy of its namespace as well: otherwise a
// tenant could multiply their entries, with one policy of its own for each of its endpoints.
func (s *store) hasQuota(h *mapPolicy) bool {
	return s.quota != (capacity{}) && h.target.Namespace() != ""
}

// fit returns nil if the maps may have more entries of an id, otherwise [errQuota] or [errFull].
func (s *store) fit(h *mapPolicy, need capacity) error {
	if s.hasQuota(h) && need.exceeds(s.quota.minus(s.usedBy(h.target.Namespace()))) {
		return errQuota
	}
	if !need.fits(s.capacity.minus(s.used())) {
		return errFull
	}
	return nil
}

// assign assigns a policy id to each compiled policy: its current id, an id whose endpoints all change to the policy and whose entries can be changed in
// place, an id of the previous run with the same entries, or a new one. successors has the desired policies of the endpoints that have an id now, by id.
func (s *store) assign(wanted iter.Seq[*policycompiler.Compiled], successors map[uint32]successors) {
	s.moved = false
	clear(s.by)
	clear(s.current)
	for id, h := range s.byID {
		h.users = successors[id].users()
		if h.is != nil { // otherwise the first write is not complete
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
		h := s.findUpdatable(c, successors)
		if h == nil {
			h = s.reuse(c, before, successors)
		}
		if h == nil {
			h = &mapPolicy{id: s.next(), broken: true}
			s.byID[h.id] = h
		} else if s.by[h.is] == h {
			delete(s.by, h.is)
		}
		h.target, s.by[c] = c, h
		s.alive()
	}
}

// before returns the entries of the previous run by policy id.
func (s *store) before() map[uint32]map[policycompiler.Key]policycompiler.Entry {
	all := map[uint32]map[policycompiler.Key]policycompiler.Entry{}
	for k, e := range s.stale {
		if all[k.ID] == nil {
			all[k.ID] = map[policycompiler.Key]policycompiler.Entry{}
		}
		all[k.ID][k.Key] = e
	}
	return all
}

// reuse reuses an id of the previous run whose entries equal c, if c is the desired policy of all its endpoints. So after a restart unchanged policies need
// no second copy in the maps.
func (s *store) reuse(c *policycompiler.Compiled, before map[uint32]map[policycompiler.Key]policycompiler.Entry, successors map[uint32]successors) *mapPolicy {
	for _, id := range slices.Sorted(maps.Keys(before)) {
		next := successors[id]
		if !next.only(c) || !same(before[id], c) {
			continue
		}
		// The entries are written again, because their rule cookies may have changed.
		h := &mapPolicy{id: id, users: next.users(), broken: true}
		for k, e := range before[id] {
			delete(s.stale, entryKey{id, k})
			s.old = s.old.minus(capacityOf([]policycompiler.Entry{e}))
			h.reserve([]policycompiler.Entry{e})
		}
		delete(before, id)
		s.byID[id] = h
		return h
	}
	return nil
}

// same reports whether entries have the same keys and verdicts as c.
func same(before map[policycompiler.Key]policycompiler.Entry, c *policycompiler.Compiled) bool {
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

// findUpdatable returns an id whose endpoints all change to c and whose policy can be changed to c in place, nil if there is none. It skips an id whose policy is
// still desired by an endpoint: that endpoint would have no id until the next round.
func (s *store) findUpdatable(c *policycompiler.Compiled, successors map[uint32]successors) *mapPolicy {
	if s.frozen {
		return nil
	}
	var found *mapPolicy
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

// inPlace reports whether from can be changed to to entry by entry, without a moment in which a packet is allowed that neither policy allows, or denied that
// neither policy denies. This is the case if all changes open or all changes narrow. Entries about peers that no policy knows yet, or about deleted ones, do
// not count.
func (s *store) inPlace(from, to *policycompiler.Compiled) bool {
	if to.TooLarge() || to.Shape()&^from.Shape() != 0 {
		return false // it has no entries, or the datapath does not look up keys of the new shape
	}
	d := to.Diff(from)
	if len(d.Changed) > 0 || s.anyStop(d.AddedDenies) || s.anyStop(d.Removed) {
		return false
	}
	opens := s.anyKnown(d.AddedAllows, false) || s.anyKnown(d.Removed, true)
	return !(opens && s.narrows(d))
}

// anyKnown reports whether an entry with the verdict may match a peer.
func (s *store) anyKnown(list []policycompiler.Entry, deny bool) bool {
	return slices.ContainsFunc(list, func(e policycompiler.Entry) bool { return e.Deny == deny && !s.fresh(e.Kind, e.Identity) })
}

// anyStop reports whether a stop entry is about an address range that a peer may have. Such an entry excludes the entries about the ranges around it, so it
// opens denied ports and narrows allowed ones.
func (s *store) anyStop(list []policycompiler.Entry) bool {
	return slices.ContainsFunc(list, func(e policycompiler.Entry) bool { return e.IsStop() && !s.fresh(e.Kind, e.Identity) })
}

// narrows reports whether a change may deny packets of known peers that were allowed.
func (s *store) narrows(d policycompiler.Diff) bool {
	return len(d.Changed) > 0 || s.anyKnown(d.AddedDenies, true) || s.anyKnown(d.Removed, false)
}

// fresh reports whether no peer has an identity yet, or any longer, so that entries about it match no packet.
func (s *store) fresh(kind policycompiler.Kind, identity uint32) bool {
	return !s.peers.mayMatch(kind, identity)
}

// free removes an id that no row has any longer, allows before denies: the slot of a deleted endpoint may name it for another moment.
func (s *store) free(h *mapPolicy) error {
	list := slices.Collect(maps.Values(h.extra))
	if h.is != nil {
		list = slices.AppendSeq(list, h.is.Entries())
	}
	slices.SortStableFunc(list, func(a, b policycompiler.Entry) int { return deniesFirst(b, a) })
	if err := s.remove(h, list); err != nil {
		return err
	}
	delete(s.byID, h.id)
	return nil
}

// previousID returns an id of the previous run that an endpoint still has; 0 if there is none.
func (s *store) previousID(used map[uint32]successors) (id uint32) {
	for k := range s.stale {
		if len(used[k.ID]) > 0 {
			id = max(id, k.ID)
		}
	}
	return id
}

// outdatedRanges returns the numbers of the address ranges in entries of outdated policies that endpoints have. If any other range is removed, its addresses
// have the range around it, and entries about that range have applied to them before. This does not hold for a flat policy, whose ranges are not nested: it may
// deny a range by having no entry about it.
func (s *store) outdatedRanges(used map[uint32]successors) (numbers map[uint32]bool, flat bool) {
	numbers = map[uint32]bool{}
	add := func(k policycompiler.Key, nested bool) {
		if k.Kind == policycompiler.CIDR || k.Kind == policycompiler.CIDROutside {
			numbers[k.Identity], flat = true, flat || !nested
		}
	}
	for k := range s.stale {
		if len(used[k.ID]) > 0 {
			add(k.Key, s.nested[k.ID])
		}
	}
	for _, h := range s.byID {
		if h.users == 0 || s.current[h.is] {
			continue
		}
		nested := h.is != nil && h.is.Nested()
		for k := range h.extra {
			add(k, nested)
		}
		if h.is != nil {
			for e := range h.is.Entries() {
				add(e.Key, nested)
			}
		}
		s.alive()
	}
	return numbers, flat
}

// sweep removes the entries of the previous run, allows before denies. It keeps the ids that endpoints still have.
func (s *store) sweep(used map[uint32]successors) error {
	for _, denies := range []bool{false, true} {
		for k, e := range s.stale {
			if len(used[k.ID]) > 0 || e.Deny != denies {
				continue
			}
			if err := s.maps.Delete(k.ID, k.Key); err != nil {
				return fmt.Errorf("delete an entry of policy %d of the previous run: %w", k.ID, err)
			}
			delete(s.stale, k)
			s.old = s.old.minus(capacityOf([]policycompiler.Entry{e}))
		}
	}
	return nil
}

// maxCostly is the number of policies that an error about full maps names at most.
const maxCostly = 3

// costliest names the policies with the most entries.
func (s *store) costliest() string {
	all := make([]*mapPolicy, 0, len(s.byID))
	size := func(h *mapPolicy) int {
		if h.target == nil {
			return 0
		}
		entries, ranges := h.target.Len()
		return entries + ranges
	}
	for _, h := range s.byID {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *mapPolicy) int { return cmp.Or(size(b)-size(a), cmp.Compare(a.id, b.id)) })
	var texts []string
	for _, h := range all[:min(len(all), maxCostly)] {
		texts = append(texts, fmt.Sprintf("policy %d with %d entries (%s)", h.id, size(h), printable.List(h.policies, maxNames)))
	}
	return strings.Join(texts, "; ")
}
