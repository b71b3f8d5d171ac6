package servicemaps

import "github.com/waggle-net/waggle/bpf"

// holdings are the members and ranges of all frontends.
type holdings struct {
	of      map[uint32]*belongings // by id of a frontend; frontends without any are omitted
	members uint32                 // number of members of all belongings
	ranges  uint32
}

// belongings are the members and ranges of a frontend in other maps.
type belongings struct {
	of      bpf.ServiceKey // the owner, while wanted is true
	wanted  bool
	members map[uint32]member        // by backend
	ranges  map[bpf.SourceRange]bool // false for ranges that are no longer used
	held    int                      // number of quarantined entries that need the ranges
	// unsettled means that the row is not in force yet: the entry in force may still use ranges that the row does not.
	unsettled bool
}

// member holds the scopes of a frontend that have a backend, one bit for each: those in the map, and the desired ones. 0 means no scope.
type member struct{ has, wants uint32 }

func (b *belongings) empty() bool { return len(b.members) == 0 && len(b.ranges) == 0 && b.held == 0 }

// wantNothing marks all members and ranges as unused.
func (b *belongings) wantNothing() {
	for backend, m := range b.members {
		b.members[backend] = member{has: m.has}
	}
	for r := range b.ranges {
		b.ranges[r] = false
	}
}

// get returns the belongings of a frontend, and creates them if there are none.
func (h *holdings) get(id uint32) *belongings {
	b := h.of[id]
	if b == nil {
		b = &belongings{members: map[uint32]member{}, ranges: map[bpf.SourceRange]bool{}}
		h.of[id] = b
	}
	return b
}

// recordScopes records the scopes of a member in the map.
func (h *holdings) recordScopes(m bpf.AffinityMember, scopes uint32, err error) {
	members := h.of[m.Service].members
	now := members[m.Backend]
	switch {
	case err == nil:
		now.has = scopes
		members[m.Backend] = now
	case now.has == 0:
		strike(members, m.Backend, &h.members)
	}
}

// strikeMember removes a member that is no longer in the map.
func (h *holdings) strikeMember(m bpf.AffinityMember) {
	strike(h.of[m.Service].members, m.Backend, &h.members)
}

// strikeRange removes a range that is not in the map.
func (h *holdings) strikeRange(r bpf.SourceRangeKey) {
	strike(h.of[r.Service].ranges, bpf.SourceRangeOf(r), &h.ranges)
}

// disown marks the members and ranges of an id as unused if a row is their owner, and reports whether it was.
func (h *holdings) disown(id uint32, owner bpf.ServiceKey) bool {
	b := h.of[id]
	if b == nil || !b.wanted || b.of != owner {
		return false
	}
	b.wanted, b.unsettled = false, false
	b.wantNothing()
	return true
}

// retainRanges returns the id of a frontend whose source ranges must stay for the quarantine time, or 0. The replaced entry uses them, and programs may just have
// read that entry.
func (h *holdings) retainRanges(was, is bpf.Service) uint32 {
	b := h.of[was.Id]
	const policy = bpf.ServiceRanges | bpf.ServiceRangesDeny
	if b == nil || was.Id != is.Id || was.Flags&bpf.ServiceRanges == 0 || was.Flags&policy == is.Flags&policy {
		return 0
	}
	b.held++
	return was.Id
}

// enter adds a member or range, or changes its value. Like [strike] it updates the total in all.
func enter[K comparable, V any](some map[K]V, key K, value V, all *uint32) {
	if _, there := some[key]; !there {
		*all++
	}
	some[key] = value
}

// strike removes a member or range that is no longer in the map.
func strike[K comparable, V any](some map[K]V, key K, all *uint32) {
	if _, there := some[key]; there {
		*all--
		delete(some, key)
	}
}
