package endpointmaps

import (
	"errors"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// feed follows endpoints and their policies.
type feed struct {
	endpoints *changefeed.Feed[*endpoints.Endpoint]
	policies  *changefeed.Feed[*endpointpolicies.EndpointPolicy]
}

// follow subscribes to endpoints and policies. The feeds start with all existing rows.
func (c controller) follow() (f feed, err error) {
	txn := c.DB.WriteTxn(c.Endpoints, c.Policies)
	defer txn.Commit()
	var err1, err2 error
	f.endpoints, err1 = changefeed.Follow(txn, c.Endpoints)
	f.policies, err2 = changefeed.Follow(txn, c.Policies)
	return f, errors.Join(err1, err2)
}

func (f feed) close() {
	f.endpoints.Close()
	f.policies.Close()
}

// next marks the endpoints with changes up to a snapshot, and adds to changed the channels that close at the next change.
func (f feed) next(txn statedb.ReadTxn, changed *statedb.WatchSet) endpointfeed.Marks {
	m := endpointfeed.Marks{}
	endpointfeed.Mark(m, f.endpoints.UpTo(txn, changed), func(ep *endpoints.Endpoint) uint16 { return ep.ID })
	endpointfeed.Mark(m, f.policies.UpTo(txn, changed), func(p *endpointpolicies.EndpointPolicy) uint16 { return p.EndpointID })
	return m
}

// lastPass is the state that a pass needs from the previous one.
type lastPass struct {
	all       bool            // the next pass must process all endpoints
	gateways  gateways        // gateways of the node
	undecided map[uint16]bool // endpoints without a policy
}

// note updates the endpoints without a policy. With nil marks the pass has processed all endpoints.
func (l *lastPass) note(want desired, marked endpointfeed.Marks) {
	if marked == nil {
		clear(l.undecided)
	}
	for id := range marked {
		delete(l.undecided, id)
	}
	for _, id := range want.undecided {
		l.undecided[id] = true
	}
}

// endpointsOf yields the marked endpoints; with nil marks all endpoints.
func (c controller) endpointsOf(txn statedb.ReadTxn, marked endpointfeed.Marks) iter.Seq[*endpoints.Endpoint] {
	if marked == nil {
		return statedb.ToSeq(c.Endpoints.All(txn))
	}
	return func(yield func(*endpoints.Endpoint) bool) {
		for id := range marked {
			for ep := range c.Endpoints.List(txn, endpoints.ByID(id)) {
				if !yield(ep) {
					return
				}
			}
		}
	}
}

// contested reports whether a marked endpoint claims the link or an address of another endpoint. Such conflicts are resolved in a pass over all endpoints.
func (c controller) contested(txn statedb.ReadTxn, marked endpointfeed.Marks) bool {
	for ep := range c.endpointsOf(txn, marked) {
		if link, _, found := c.Links.Get(txn, bpfendpoints.LinkByIfIndex(uint32(ep.HostIfIndex))); found && link.ID != ep.ID {
			return true
		}
		for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
			row, _, found := c.Addresses.Get(txn, bpfendpoints.AddressByAddr(addr))
			if found && row.Owner == endpointOwner && row.ID != ep.ID {
				return true
			}
		}
	}
	return false
}

// tableRows has rows of the three tables.
type tableRows struct {
	facts     iter.Seq2[*bpfendpoints.Facts, statedb.Revision]
	links     iter.Seq2[*bpfendpoints.Link, statedb.Revision]
	addresses iter.Seq2[*bpfendpoints.Address, statedb.Revision]
}

// rowsOf returns the current rows of the marked endpoints; with nil marks the rows of all endpoints. The rows of an endpoint are written in one transaction, so
// its facts name its link and its addresses.
func (c controller) rowsOf(txn statedb.ReadTxn, marked endpointfeed.Marks) tableRows {
	if marked == nil {
		return tableRows{c.Facts.All(txn), c.Links.All(txn), c.Addresses.List(txn, bpfendpoints.AddressByOwner(endpointOwner))}
	}
	var facts []*bpfendpoints.Facts
	var links []*bpfendpoints.Link
	var addresses []*bpfendpoints.Address
	for id := range marked {
		f, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(id))
		if !found {
			continue
		}
		facts = append(facts, f)
		if link, _, found := c.Links.Get(txn, bpfendpoints.LinkByIfIndex(f.IfIndex)); found && link.ID == id {
			links = append(links, link)
		}
		for _, addr := range []netip.Addr{f.IPv4, f.IPv6} {
			row, _, found := c.Addresses.Get(txn, bpfendpoints.AddressByAddr(addr))
			if found && row.Owner == endpointOwner && row.ID == id {
				addresses = append(addresses, row)
			}
		}
	}
	return tableRows{sequence(facts), sequence(links), sequence(addresses)}
}

// sequence returns the rows of a list as statedb does, without revisions.
func sequence[R any](list []R) iter.Seq2[R, statedb.Revision] {
	return func(yield func(R, statedb.Revision) bool) {
		for _, row := range list {
			if !yield(row, 0) {
				return
			}
		}
	}
}
