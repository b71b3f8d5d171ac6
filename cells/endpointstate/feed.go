package endpointstate

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// feed follows the rows of endpoints, their attachments, identities and policies.
type feed struct {
	endpointfeed.Feed
	attachments statedb.ChangeIterator[*attachments.Attachment]
	identities  statedb.ChangeIterator[*identities.EndpointIdentity]
	policies    statedb.ChangeIterator[*endpointpolicies.EndpointPolicy]
}

// subscribe begins with everything that exists: the first batch of changes is a full pass.
func (c *controller) subscribe() (f feed, err error) {
	txn := c.DB.WriteTxn(c.Attachments, c.Identities, c.Policies)
	f.attachments, err = c.Attachments.Changes(txn)
	if err == nil {
		f.identities, err = c.Identities.Changes(txn)
	}
	if err == nil {
		f.policies, err = c.Policies.Changes(txn)
	}
	txn.Commit()
	if err != nil {
		return f, err
	}
	f.Feed, err = endpointfeed.Subscribe(c.DB, endpointfeed.Tables{
		Endpoints: c.Endpoints, Facts: c.Facts, Links: c.Links, Addresses: c.Addresses})
	return f, err
}

func (f feed) close() {
	f.attachments.Close()
	f.identities.Close()
	f.policies.Close()
	f.Close()
}

// next marks what has changed up to a snapshot, and adds to changed what closes when more has. All is true when a row
// that concerns every endpoint is among it: one of the programs that all links share.
func (f feed) next(txn statedb.ReadTxn, changed *statedb.WatchSet) (m endpointfeed.Marks, all bool) {
	m = f.Next(txn, changed)
	delete(m, 0) // addresses of the node
	changed.Add(endpointfeed.Follow(txn, f.identities, m, func(r *identities.EndpointIdentity) uint16 { return r.EndpointID }))
	changed.Add(endpointfeed.Follow(txn, f.policies, m, func(r *endpointpolicies.EndpointPolicy) uint16 { return r.EndpointID }))
	changed.Add(endpointfeed.Follow(txn, f.attachments, m, func(r *attachments.Attachment) uint16 { return r.EndpointID }))
	all = m[0]
	delete(m, 0)
	return m, all
}

// everything marks each endpoint and each state.
func (c *controller) everything(txn statedb.ReadTxn) endpointfeed.Marks {
	m := endpointfeed.Marks{}
	for row := range c.Endpoints.All(txn) {
		m[row.ID] = true
	}
	for row := range c.States.All(txn) {
		m[row.ID] = true
	}
	return m
}
