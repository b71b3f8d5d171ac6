package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policymap"
)

// held is one policy id and what the maps hold of it.
type held struct {
	id     uint32
	is     *policymap.Compiled // what stands in the maps, complete unless broken; nil while it is written for the first time
	target *policymap.Compiled // what it shall become
	users  int                 // directions of endpoints whose rows name it
	size   room                // how many entries the maps may have of it
	// extra are entries that the maps may have beyond is: those of a change that did not come to its end, and heirs (see
	// [store.bequeath]).
	extra map[policymap.Key]policymap.Entry
	// broken means that entries of is may be missing: a write failed half way, or somebody else changed them.
	broken bool
	// open means that a deny is missing which peers shall meet whom no policy knows yet.
	open     bool
	err      error          // why it is not what it should be; nil when it is
	policies []string       // that it is made of, for people
	change   policymap.Diff // from is to target, in this pass
	narrowed bool           // it came to deny known peers what it had allowed, and nobody was told yet
}

// complete tells whether the maps hold exactly what c says.
func (h *held) complete(c *policymap.Compiled) bool { return h.is == c && !h.broken }

// deniesFirst orders entries for writing: what denies stands before what it takes from.
func deniesFirst(a, b policymap.Entry) int {
	rank := func(e policymap.Entry) int {
		if e.Deny {
			return 0
		}
		return 1
	}
	return rank(a) - rank(b)
}

// lacks is the room that entries need that are not reserved yet.
func (h *held) lacks(list []policymap.Entry) (need room) {
	for i := range list {
		if _, reserved := h.extra[list[i].Key]; !reserved {
			need = need.plus(roomOf(list[i : i+1]))
		}
	}
	return need
}

// reserve counts entries that are about to be written. Until the change is complete they are what may be there beyond it.
func (h *held) reserve(list []policymap.Entry) {
	if h.extra == nil {
		h.extra = make(map[policymap.Key]policymap.Entry, len(list))
	}
	h.size = h.size.plus(h.lacks(list))
	for _, e := range list {
		h.extra[e.Key] = e
	}
}

// beyond lists the extra entries that the target does not have.
func (h *held) beyond() (list []policymap.Entry) {
	wanted := make(map[policymap.Key]bool)
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

// name keeps the list of objects that the id is made of. When nothing was removed, the names of what was added are enough.
func (h *held) name() {
	names := map[string]bool{}
	look := func(e policymap.Entry) {
		if rule, found := h.target.Rule(e.Rule); found && rule.Policy.Name != "" {
			names[rule.Policy.String()] = true
		}
	}
	if h.is != nil && len(h.change.Removed)+len(h.change.Renamed) == 0 {
		for _, name := range h.policies {
			names[name] = true
		}
		for _, e := range slices.Concat(h.change.AddedAllows, h.change.AddedDenies) {
			look(e)
		}
	} else {
		for e := range h.target.Entries() {
			look(e)
		}
	}
	h.policies = slices.Sorted(maps.Keys(names))
}

// maxNames is how many objects a text names.
const maxNames = 3

// shorten names a few of many.
func shorten(names []string) string {
	if n := len(names); n > maxNames {
		return strings.Join(names[:maxNames], ", ") + fmt.Sprintf(" and %d more", n-maxNames)
	}
	return strings.Join(names, ", ")
}
