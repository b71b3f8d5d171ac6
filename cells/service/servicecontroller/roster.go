package servicecontroller

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// roster keeps the members of a service with many endpoints, so that a change of one slice reads the endpoints of that slice alone.
type roster struct {
	service *k8s.Service
	world   *world
	slices  []*k8s.EndpointSlice // from which the members were made
	members [][]member           // by group
	placed  bool                 // an endpoint depends on the addresses of this node
}

// fits reports whether a roster is valid for a service in a world, except for changed slices.
func (r *roster) fits(w *world, s *k8s.Service, groups int) bool {
	return r != nil && r.service == s && len(r.members) == groups && r.world.zone == w.zone && r.world.sameAddresses(w)
}

// follow compares the slices with the slices of a roster, and reads the added and the removed ones.
func (m *model) follow(w *world, r *roster) {
	m.roster, m.placed = r, m.placed || r.placed
	before, now := map[*k8s.EndpointSlice]bool{}, map[*k8s.EndpointSlice]bool{}
	for _, slice := range r.slices {
		before[slice] = true
	}
	for _, slice := range m.slices {
		now[slice] = true
	}
	for _, g := range m.groups {
		for _, slice := range r.slices {
			if !now[slice] {
				g.removed = w.read(g.removed, m, g, slice)
			}
		}
		for _, slice := range m.slices {
			if !before[slice] {
				g.added = w.read(g.added, m, g, slice)
			}
		}
		slices.SortStableFunc(g.removed, better)
		slices.SortStableFunc(g.added, better)
	}
}

// gather reads all slices.
func (m *model) gather(w *world) {
	m.roster = nil
	for _, g := range m.groups {
		g.removed, g.added = nil, nil
		for _, slice := range m.slices {
			g.endpoints = w.read(g.endpoints, m, g, slice)
		}
		g.endpoints = best(g.endpoints)
	}
}

// touched describes how changed slices mention one address behind one port.
type touched struct {
	best    *endpoint // nil when no added slice mentions it
	removed uint32    // mentions in removed slices
	added   uint32    // mentions in added slices
}

// touch calls found with each address whose endpoints in the added slices differ from the endpoints in the removed ones.
func (g *group) touch(found func(loadbalancer.Address, touched)) {
	removed, added := g.removed, g.added
	for len(removed)+len(added) > 0 {
		var a loadbalancer.Address
		switch {
		case len(removed) == 0:
			a = added[0].Address
		case len(added) == 0 || removed[0].Address.Compare(added[0].Address) < 0:
			a = removed[0].Address
		default:
			a = added[0].Address
		}
		gone, come := ofAddress(removed, a), ofAddress(added, a)
		removed, added = removed[len(gone):], added[len(come):]
		if slices.Equal(gone, come) {
			continue
		}
		t := touched{removed: uint32(len(gone)), added: uint32(len(come))}
		if len(come) > 0 {
			t.best = &come[0]
		}
		found(a, t)
	}
}

// patch is the change of the backend with one address.
type patch struct {
	loadbalancer.Address
	id uint32    // 0 without a row
	of []touched // by group
}

// known reports whether all slices that mentioned the address are removed. If so, the added slices have all data about it.
func (x *patch) known(r *roster) bool {
	for i, t := range x.of {
		mentions := uint32(0)
		if at, found := slices.BinarySearchFunc(r.members[i], member{id: x.id}, byID); found {
			mentions = r.members[i][at].mentions
		}
		if mentions != t.removed {
			return false
		}
	}
	return true
}

// best returns the endpoint with the best state, or nil if the service no longer names the backend.
func (x *patch) best() (best *endpoint) {
	for _, t := range x.of {
		if t.best != nil && (best == nil || rank(t.best.state) > rank(best.state)) {
			best = t.best
		}
	}
	return best
}

// member returns the endpoint as a member of a group. Its mentions are 0 if it is not in the group.
func (x *patch) member(group int) member {
	t := x.of[group]
	if t.best == nil {
		return member{id: x.id}
	}
	m := newMember(t.best, x.id)
	m.mentions = t.added
	return m
}

// ofAddress returns the endpoints with an address from the beginning of a sorted list.
func ofAddress(list []endpoint, a loadbalancer.Address) []endpoint {
	i := 0
	for i < len(list) && list[i].Address == a {
		i++
	}
	return list[:i:i]
}

// revise applies changes to a list. Both are sorted and have each key once. A change replaces the element with its key or is inserted; a change for which gone
// returns true removes the element. The list is changed in place if elements are only replaced.
func revise[E any](list, changes []E, compare func(a, b E) int, gone func(*E) bool) []E {
	for i := range changes {
		at, found := slices.BinarySearchFunc(list, changes[i], compare)
		if !found || gone(&changes[i]) {
			return rebuild(list, changes, compare, gone)
		}
		list[at] = changes[i]
	}
	return list
}

func rebuild[E any](list, changes []E, compare func(a, b E) int, gone func(*E) bool) []E {
	rebuilt := make([]E, 0, len(list)+len(changes))
	for i := range changes {
		at, found := slices.BinarySearchFunc(list, changes[i], compare)
		rebuilt = append(rebuilt, list[:at]...)
		if list = list[at:]; found {
			list = list[1:]
		}
		if !gone(&changes[i]) {
			rebuilt = append(rebuilt, changes[i])
		}
	}
	return append(rebuilt, list...)
}
