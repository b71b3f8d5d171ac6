package policymaps

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// mapPolicy is one policy id with its entries in the maps.
type mapPolicy struct {
	id     uint32
	is     *policycompiler.Compiled // contents of the maps, complete unless broken; nil until the first write is complete
	target *policycompiler.Compiled // desired contents
	users  int                      // number of directions of endpoints that have the id
	size   capacity                 // number of entries that the maps may have for the id
	// extra are entries that the maps may have in addition to is: entries of an incomplete change, and inherited entries (see [store.inheritRange]).
	extra map[policycompiler.Key]policycompiler.Entry
	// broken means that entries of is may be missing: a write failed, or another program changed them.
	broken bool
	// open means that a deny is missing which must apply to peers that no policy knows yet.
	open     bool
	err      error               // why the contents differ from the target; nil if they do not
	policies []string            // objects from which the id is compiled, for display
	change   policycompiler.Diff // difference between is and target in this round
	narrowed bool                // the id now denies known peers packets that it allowed, and revisions are not raised yet
	// narrowedTo is the target of an incomplete change that has set narrowed; nil if there is none.
	narrowedTo *policycompiler.Compiled
}

// complete reports whether the maps have all entries of c. They may have extra entries as well.
func (h *mapPolicy) complete(c *policycompiler.Compiled) bool { return h.is == c && !h.broken }

// narrow sets narrowed if an incomplete change narrows. Each round tries such a change again, and only the first one for a target may raise revisions: the
// datapath evaluates all flows of the endpoints again, and the facts with the new revision begin the next round.
func (h *mapPolicy) narrow(narrows bool) {
	if narrows && h.narrowedTo != h.target {
		h.narrowed, h.narrowedTo = true, h.target
	}
}

// deniesFirst orders entries for writing: denies before the allows that they restrict.
func deniesFirst(a, b policycompiler.Entry) int {
	rank := func(e policycompiler.Entry) int {
		if e.Deny {
			return 0
		}
		return 1
	}
	return rank(a) - rank(b)
}

// missingCapacity returns the capacity that entries need in addition to the reserved entries.
func (h *mapPolicy) missingCapacity(list []policycompiler.Entry) (need capacity) {
	for i := range list {
		if _, reserved := h.extra[list[i].Key]; !reserved {
			need = need.plus(capacityOf(list[i : i+1]))
		}
	}
	return need
}

// reserve counts entries that are about to be written. Until the change is complete they are extra entries.
func (h *mapPolicy) reserve(list []policycompiler.Entry) {
	if h.extra == nil {
		h.extra = make(map[policycompiler.Key]policycompiler.Entry, len(list))
	}
	h.size = h.size.plus(h.missingCapacity(list))
	for _, e := range list {
		h.extra[e.Key] = e
	}
}

// beyond lists the extra entries that the target does not have.
func (h *mapPolicy) beyond() (list []policycompiler.Entry) {
	wanted := make(map[policycompiler.Key]bool)
	for e := range h.target.Entries() {
		wanted[e.Key] = true
	}
	for k, e := range h.extra {
		if !wanted[k] {
			list = append(list, e)
		}
	}
	return list
}

// added yields the entries that the change adds.
func (h *mapPolicy) added(yield func(policycompiler.Entry) bool) {
	for _, list := range [][]policycompiler.Entry{h.change.AddedAllows, h.change.AddedDenies} {
		for _, e := range list {
			if !yield(e) {
				return
			}
		}
	}
}

// name updates the list of objects from which the id is compiled. If no entry was removed or renamed, only the objects of added entries are new.
func (h *mapPolicy) name() {
	var names []string
	entries := h.target.Entries()
	if h.is != nil && len(h.change.Removed)+len(h.change.Renamed) == 0 {
		names, entries = slices.Clone(h.policies), h.added
	}
	for _, ref := range h.target.Policies(entries) {
		names = append(names, ref.String())
	}
	slices.Sort(names)
	h.policies = slices.Compact(names)
}

// maxNames is the number of objects that a text names at most.
const maxNames = 3
