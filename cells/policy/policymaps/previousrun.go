package policymaps

import (
	"iter"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// previousRun has the policies that the previous run enforced. While policies come from the copy on disk only, which may lack the newest ones, restored endpoints
// keep these, unless the copy allows nothing beyond them.
type previousRun struct {
	slots   map[uint16]slot                        // of the endpoints, when this run began; only the methods of previousRun read them
	entries map[uint32]map[policycompiler.Key]bool // whether an entry denies, by policy id and key
	denies  map[uint32]bool                        // policy ids with entries that deny identities or classes
	open    map[uint32]bool                        // policy ids that do not isolate their endpoints
	settled bool                                   // policies come from their sources, not from the copy on disk
	nested  bool                                   // the previous run had policies with nested address ranges, so all programs know them
	classes bool                                   // the previous run had classes of identities, so all programs know them: see [controller.startClasses]
}

func newPreviousRun(slots map[uint16]slot, s *store, k *identityClasses) previousRun {
	e := previousRun{slots: slots, entries: map[uint32]map[policycompiler.Key]bool{}, denies: map[uint32]bool{}, open: map[uint32]bool{1: true}, classes: len(k.written) > 0}
	e.nested = len(s.nested) > 0
	for k, entry := range s.stale {
		if e.entries[k.ID] == nil {
			e.entries[k.ID] = map[policycompiler.Key]bool{}
		}
		e.entries[k.ID][k.Key] = entry.Deny
		if entry.Deny && ofIdentities(k.Kind) {
			e.denies[k.ID] = true
		}
		if !entry.Deny && k.Kind == policycompiler.Any && entry.Rule == policycompiler.CookieNotIsolated {
			e.open[k.ID] = true
		}
	}
	return e
}

// settle discards the entries of the previous run when synced is true: see [inputs.synced].
func (e *previousRun) settle(synced bool) {
	if synced && !e.settled {
		e.entries, e.settled = nil, true
	}
}

// slot returns the slot that an endpoint had when this run began.
func (e *previousRun) slot(ep *endpoints.Endpoint) (slot, bool) {
	s, found := e.slots[ep.ID]
	return s, found && ep.Restored && int(s.ifindex) == ep.HostIfIndex
}

// mayHaveSlot reports whether the maps had a slot for the id of a restored endpoint when this run began. The slot stays until endpoint-maps writes or removes
// it.
func (e *previousRun) mayHaveSlot(ep *endpoints.Endpoint) bool {
	_, found := e.slots[ep.ID]
	return found && ep.Restored
}

// mayPass reports whether the datapath may forward packets of an endpoint that has no row yet, because of its entries of the previous run. These entries are
// removed when endpoint-policies is complete, so the table waits for the endpoint. The table must not wait for the announcement of an identity, because the
// announcement may wait for the removal of such entries: see [controller.taken]. replaced reports whether every hook has a program of this run. If not, a
// program may use another slot than the maps have.
func (e *previousRun) mayPass(ep *endpoints.Endpoint, replaced bool) bool {
	_, had := e.slot(ep)
	return ep.Restored && (had || !replaced)
}

// endpointsWith yields the local ids of the endpoints that peers knew by an identity when this run began.
func (e *previousRun) endpointsWith(identity uint32) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for id, s := range e.slots {
			if s.identity == identity && !yield(id) {
				return
			}
		}
	}
}

// isolates reports whether a policy id of the previous run isolates its endpoints.
func (e *previousRun) isolates(id uint32) bool { return !e.open[id] }

// has reports whether an endpoint keeps its restored policy if the desired one cannot be published.
func (e *previousRun) has(ep *endpoints.Endpoint) bool {
	_, found := e.slot(ep)
	return found && !e.settled
}

// widens returns for which input an endpoint has to wait, "" for none. A restored endpoint waits if the copy on disk may allow more than the datapath allows
// now. A new endpoint waits if the copy has no policy and the previous run enforced some.
func (e *previousRun) widens(ep *endpoints.Endpoint, d decisions, policies int) string {
	switch {
	case e.settled:
		return ""
	case !e.has(ep) && policies == 0 && e.enforced():
		return "the source of policies: the previous run enforced policies, and none is known now"
	case !e.has(ep):
		return ""
	}
	slot := e.slots[ep.ID]
	if e.within(d[0], slot.ids[0]) && e.within(d[2], slot.ids[2]) {
		return ""
	}
	return "the source of policies: the copy on disk allows more than the enforced policies"
}

// enforced reports whether an endpoint of the previous run had a policy.
func (e *previousRun) enforced() bool {
	for _, s := range e.slots {
		if slices.Max(s.ids[:]) > 1 {
			return true
		}
	}
	return false
}

// within reports whether a compiled policy allows nothing beyond a policy id of the previous run.
func (e *previousRun) within(c *policycompiler.Compiled, id uint32) bool {
	switch {
	case id == 1:
		return true
	case c == nil || c.AllowsAll():
		return false
	}
	before, kept := e.entries[id], 0
	for entry := range c.Entries() {
		deny, found := before[entry.Key]
		if !entry.Deny && (!found || deny) || entry.IsStop() && !found { // a stop opens a part of a denied range
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
