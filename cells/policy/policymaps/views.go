package policymaps

import (
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// view is the state of one endpoint id in a round. It is comparable; the zero view is the view of an unused id.
type view struct {
	exists   bool
	of       decisions // desired policies of the endpoint
	isolated [2]bool
	row      *endpointpolicies.EndpointPolicy // row in the table, maybe of a previous endpoint with the id; nil if there is none
	own      bool                             // row belongs to this endpoint
	untaken  bool                             // the datapath has not applied row
	// restored means that the endpoint has no row yet and a policy of the previous run, with these policy ids.
	restored  bool
	ids       [4]uint32
	unchanged bool // the endpoint still has the identity of that run
}

// published returns the row of the endpoint, or nil.
func (v view) published() *endpointpolicies.EndpointPolicy {
	if v.own {
		return v.row
	}
	return nil
}

// successors counts the directions of the endpoints with one policy id, by desired policy.
type successors map[*policycompiler.Compiled]int

// users returns the number of directions.
func (s successors) users() (n int) {
	for _, count := range s {
		n += count
	}
	return n
}

// only reports whether c is the desired policy of all directions.
func (s successors) only(c *policycompiler.Compiled) bool { return len(s) == 1 && s[c] > 0 }

// views has the view of each endpoint, and sums over all views. [views.put] updates the sums, so that a round costs as much as its changes.
type views struct {
	by         map[uint16]view
	compiled   map[*policycompiler.Compiled]int // number of directions with this desired policy, except policies that allow everything
	successors map[uint32]successors            // by policy id
	identities map[uint32]int                   // number of rows with the identity
	untaken    map[uint16]bool                  // endpoints whose row the datapath has not applied
	restored   map[uint16]bool                  // endpoints with a policy of the previous run; true for an endpoint with the identity of that run
}

func newViews() *views {
	return &views{by: map[uint16]view{}, compiled: map[*policycompiler.Compiled]int{}, successors: map[uint32]successors{},
		identities: map[uint32]int{}, untaken: map[uint16]bool{}, restored: map[uint16]bool{}}
}

// put replaces the view of an id.
func (s *views) put(id uint16, v view) {
	before := s.by[id]
	if v == before {
		return
	}
	s.count(before, -1)
	s.count(v, 1)
	delete(s.untaken, id)
	delete(s.restored, id)
	if v.untaken {
		s.untaken[id] = true
	}
	if v.restored {
		s.restored[id] = v.unchanged
	}
	if s.by[id] = v; v == (view{}) {
		delete(s.by, id)
	}
}

// count adds n times a view to the sums.
func (s *views) count(v view, n int) {
	for _, one := range v.of {
		if one != nil && !one.AllowsAll() {
			add(s.compiled, one, n)
		}
	}
	if v.row != nil {
		add(s.identities, v.row.Identity, n)
	}
	ids := v.ids
	if v.own {
		ids = idsOf(v.row)
	}
	for i, id := range ids {
		if id <= 1 {
			continue
		}
		if s.successors[id] == nil {
			s.successors[id] = successors{}
		}
		if add(s.successors[id], v.of[i], n); len(s.successors[id]) == 0 {
			delete(s.successors, id)
		}
	}
}

// add changes a counter, and removes one that is 0.
func add[K comparable](counters map[K]int, key K, n int) {
	if counters[key] += n; counters[key] == 0 {
		delete(counters, key)
	}
}

// view evaluates one endpoint.
func (c *controller) view(txn statedb.ReadTxn, id uint16) (v view) {
	v.row, _, _ = c.Published.Get(txn, endpointpolicies.ByEndpoint(id))
	ep := c.in.subjects[id]
	if ep == nil {
		return v
	}
	ingress, egress := c.in.resolver.Compile(id)
	v.exists, v.of = true, decisions{ingress.Enforced, ingress.Audited, egress.Enforced, egress.Audited}
	v.isolated = [2]bool{ingress.Enforced.Isolated(), egress.Enforced.Isolated()}
	attachment := ep.AttachmentID()
	if v.own = v.row != nil && v.row.Attachment == attachment; v.own {
		v.untaken = !c.taken(txn, ep, v.row)
		return v
	}
	if before, had := c.previous.slot(ep); had {
		number, found := identities.Of(txn, c.Of, id, attachment)
		v.restored, v.ids, v.unchanged = true, before.ids, !found || number.Identity == before.identity
	}
	return v
}

// look updates the views to a snapshot and returns the sorted ids that the round has to publish: the ids of changed rows, or all ids.
func (c *controller) look(txn statedb.ReadTxn) []uint16 {
	marked := c.in.marked
	c.in.marked = endpointfeed.Marks{}
	if c.wholeRound() {
		c.views, c.in.all = newViews(), false
		for id := range c.in.subjects {
			marked[id] = true
		}
		for row := range c.Published.All(txn) {
			marked[row.EndpointID] = true
		}
	}
	for id := range c.views.untaken {
		marked[id] = true
	}
	ids := slices.Sorted(maps.Keys(marked))
	for _, id := range ids {
		c.views.put(id, c.view(txn, id))
		c.alive()
	}
	return ids
}

// wholeRound reports whether the round has to evaluate all endpoints: until the first complete round without an error, after an error, and after a change that
// affects more than single endpoints. No timer makes a round evaluate them: each change of an input marks the endpoints that it affects.
func (c *controller) wholeRound() bool {
	return !c.last.steady || c.in.all || len(c.marks.policies)+len(c.marks.ranges) > 0 || c.in.resolver.NeedsCompile()
}
