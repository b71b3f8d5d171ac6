package endpointstate

import (
	"errors"
	"maps"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// feed follows the rows of endpoints, their attachments, identities, policies and ipcache entries.
type feed struct {
	endpointfeed.Feed
	attachments *changefeed.Feed[*attachments.Attachment]
	identities  *changefeed.Feed[*identities.EndpointIdentity]
	policies    *changefeed.Feed[*endpointpolicies.EndpointPolicy]
	ipcache     *changefeed.Feed[*ipcache.Entry]
}

// subscribe starts with all existing rows: the first batch of changes is a full pass.
func (c *controller) subscribe() (f feed, err error) {
	txn := c.DB.WriteTxn(c.Attachments, c.Identities, c.Policies, c.Ipcache)
	var errs [5]error
	f.attachments, errs[0] = changefeed.Follow(txn, c.Attachments)
	f.identities, errs[1] = changefeed.Follow(txn, c.Identities)
	f.policies, errs[2] = changefeed.Follow(txn, c.Policies)
	f.ipcache, errs[3] = changefeed.Follow(txn, c.Ipcache)
	txn.Commit()
	f.Feed, errs[4] = endpointfeed.Subscribe(c.DB, endpointfeed.Tables{
		Endpoints: c.Endpoints, Facts: c.Facts, Links: c.Links, Addresses: c.Addresses})
	return f, errors.Join(errs[:]...)
}

func (f feed) close() {
	f.attachments.Close()
	f.identities.Close()
	f.policies.Close()
	f.ipcache.Close()
	f.Close()
}

// next marks the endpoints with changes up to a snapshot, and adds to changed the channels that close at the next change. All reports whether a changed row
// affects every endpoint: a row of the programs that all links share.
func (c *controller) next(f feed, txn statedb.ReadTxn, changed *statedb.WatchSet) (m endpointfeed.Marks, all bool) {
	m = f.Next(txn, changed)
	delete(m, 0) // rows of the node's addresses
	endpointfeed.Mark(m, f.identities.UpTo(txn, changed), func(r *identities.EndpointIdentity) uint16 { return r.EndpointID })
	endpointfeed.Mark(m, f.policies.UpTo(txn, changed), func(r *endpointpolicies.EndpointPolicy) uint16 { return r.EndpointID })
	endpointfeed.Mark(m, f.attachments.UpTo(txn, changed), func(r *attachments.Attachment) uint16 { return r.EndpointID })
	c.followEntries(f, txn, changed)
	maps.Copy(m, c.ofEntries)
	c.ofEntries = nil
	all = m[0]
	delete(m, 0)
	return m, all
}

// followEntries marks the endpoints of this node whose ipcache entries have changed.
func (c *controller) followEntries(f feed, txn statedb.ReadTxn, changed *statedb.WatchSet) {
	c.entriesChanged = statedb.NewWatchSet()
	for _, change := range f.ipcache.UpTo(txn, c.entriesChanged) {
		if change.Object.Owner() != ipcache.OwnerEndpoints {
			continue
		}
		if ep, _, found := c.Endpoints.Get(txn, endpoints.ByAddress(change.Object.Prefix().Addr())); found {
			if c.ofEntries == nil {
				c.ofEntries = endpointfeed.Marks{}
			}
			c.ofEntries[ep.ID] = true
		}
	}
	changed.Merge(c.entriesChanged)
}

// everything marks all endpoints and all states.
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
