package policy

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/policymap"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// earlier is what the run before enforced. While policies are known from a copy only, which may lack the newest, the
// endpoints of that run keep it, unless what the copy says allows no more.
type earlier struct {
	slots   map[uint16]slot
	entries map[uint32]map[policymap.Key]bool // whether they deny, by policy id
	denies  bool                              // some of them deny identities or classes
	settled bool                              // the sources' own lists are in
	nested  bool                              // it gave endpoints policies with nested address ranges, so each program knows them
	classes bool                              // it gave identities classes, so each program knows these: see [controller.startClasses]
}

func newEarlier(s *store, k *identityClasses) earlier {
	e := earlier{slots: s.slots, entries: map[uint32]map[policymap.Key]bool{}, classes: len(k.written) > 0}
	e.nested = len(s.nested) > 0
	for k, entry := range s.stale {
		if e.entries[k.ID] == nil {
			e.entries[k.ID] = map[policymap.Key]bool{}
		}
		e.entries[k.ID][k.Key] = entry.Deny
		e.denies = e.denies || entry.Deny && ofIdentities(k.Kind)
	}
	return e
}

// settle forgets what was before, once everything is known anew.
func (e *earlier) settle(synced bool) {
	if synced && !e.settled {
		e.entries, e.settled = nil, true
	}
}

// slot finds what the datapath had of an endpoint when this run began.
func (e *earlier) slot(ep *endpoints.Endpoint) (slot, bool) {
	s, found := e.slots[ep.ID]
	return s, found && ep.Restored && int(s.ifindex) == ep.HostIfIndex
}

// has tells whether an endpoint goes on with what it has, when it cannot have what it should.
func (e *earlier) has(ep *endpoints.Endpoint) bool {
	_, found := e.slot(ep)
	return found && !e.settled
}

// widens says what an endpoint has to wait for: one of before because it may be allowed more than the datapath allows it now, a
// new one because the copy has no policy at all, and there were some.
func (e *earlier) widens(ep *endpoints.Endpoint, d decisions, policies int) string {
	switch {
	case e.settled:
		return ""
	case !e.has(ep) && policies == 0 && e.enforced():
		return "the source of policies: the run before enforced some, and now none is known"
	case !e.has(ep):
		return ""
	}
	slot := e.slots[ep.ID]
	if e.within(d[0], slot.ids[0]) && e.within(d[2], slot.ids[2]) {
		return ""
	}
	return "the source of policies: the copy of them on disk allows more than what is enforced"
}

// enforced tells whether the run before had policies for anybody.
func (e *earlier) enforced() bool {
	for _, s := range e.slots {
		if slices.Max(s.ids[:]) > 1 {
			return true
		}
	}
	return false
}

// within tells whether a compiled policy allows nothing that a policy id of before does not.
func (e *earlier) within(c *policymap.Compiled, id uint32) bool {
	switch {
	case id == 1:
		return true
	case c == nil || c.AllowsAll():
		return false
	}
	before, kept := e.entries[id], 0
	for entry := range c.Entries() {
		deny, found := before[entry.Key]
		if !entry.Deny && (!found || deny) {
			return false
		}
		if entry.Deny && found && deny {
			kept++
		}
	}
	denies := 0
	for _, deny := range before {
		if deny {
			denies++
		}
	}
	return kept == denies
}
