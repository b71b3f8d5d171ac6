package servicecontroller

import (
	"net/netip"
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
	size    int                  // number of endpoints of the slices behind all groups
}

// maxGroups is the maximum number of groups of a service with a roster: each changed endpoint of a roster has data about all groups.
const maxGroups = 8

// fits reports whether a roster is valid for a service in a world, except for changed slices.
func (r *roster) fits(w *world, s *k8s.Service, groups int) bool {
	return r != nil && r.service == s && len(r.members) == groups && r.world.zone == w.zone && r.world.sameAddresses(w)
}

// follow compares the slices with the slices of a roster, and reads the added and the removed ones. It returns false, without any change, if the slices exceed
// the limit of endpoints.
func (m *model) follow(w *world, r *roster) bool {
	removed, added := missing(r.slices, m.slices), missing(m.slices, r.slices)
	size := r.size - m.sizeOf(removed) + m.sizeOf(added)
	if size > maxMembers {
		return false
	}
	m.roster, m.placed, m.size = r, m.placed || r.placed, size
	w.readAll(m, removed, func(g *group) *[]endpoint { return &g.removed })
	w.readAll(m, added, func(g *group) *[]endpoint { return &g.added })
	for _, g := range m.groups {
		slices.SortStableFunc(g.removed, better)
		slices.SortStableFunc(g.added, better)
	}
	return true
}

// missing returns the slices of a list that another list does not have.
func missing(list, other []*k8s.EndpointSlice) (only []*k8s.EndpointSlice) {
	has := make(map[*k8s.EndpointSlice]bool, len(other))
	for _, slice := range other {
		has[slice] = true
	}
	for _, slice := range list {
		if !has[slice] {
			only = append(only, slice)
		}
	}
	return only
}

// gather reads all slices, up to the limit of endpoints.
func (m *model) gather(w *world) {
	m.roster, m.size = nil, m.sizeOf(m.slices)
	all := m.slices
	if m.size > maxMembers {
		m.problem("endpoints: more than %d behind all ports; each port has those with the lowest addresses", maxMembers)
		all = lowest(all, maxMembers/len(m.groups))
	}
	for _, g := range m.groups {
		g.removed, g.added = nil, nil
	}
	w.readAll(m, all, func(g *group) *[]endpoint { return &g.endpoints })
	for _, g := range m.groups {
		g.endpoints = best(g.endpoints)
	}
}

// sizeOf returns the number of endpoints behind all groups if each slice has the ports of all groups.
func (m *model) sizeOf(list []*k8s.EndpointSlice) (size int) {
	ipv4, ipv6 := 0, 0
	for _, slice := range list {
		for i := range slice.Endpoints {
			switch addrs := slice.Endpoints[i].Addrs; {
			case len(addrs) == 0:
			case addrs[0].Is4():
				ipv4++
			default:
				ipv6++
			}
		}
	}
	for _, g := range m.groups {
		if g.is4 {
			size += ipv4
		} else {
			size += ipv6
		}
	}
	return size
}

// lowest returns copies of slices that contain only the endpoints with the lowest addresses of each family, so that all nodes use the same ones.
func lowest(list []*k8s.EndpointSlice, most int) []*k8s.EndpointSlice {
	type place struct {
		netip.Addr
		slice, endpoint int
	}
	families, kept := map[bool][]place{}, make([]*k8s.EndpointSlice, len(list))
	for i, slice := range list {
		part := *slice
		part.Endpoints, kept[i] = nil, &part
		for j := range slice.Endpoints {
			if addrs := slice.Endpoints[j].Addrs; len(addrs) > 0 {
				families[addrs[0].Is4()] = append(families[addrs[0].Is4()], place{addrs[0], i, j})
			}
		}
	}
	for _, places := range families {
		slices.SortStableFunc(places, func(a, b place) int { return a.Compare(b.Addr) })
		for _, p := range places[:min(most, len(places))] {
			kept[p.slice].Endpoints = append(kept[p.slice].Endpoints, list[p.slice].Endpoints[p.endpoint])
		}
	}
	return kept
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
