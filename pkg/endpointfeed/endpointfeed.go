// Package endpointfeed returns the endpoints of changed rows to a controller, so that a pass processes only these endpoints: an
// ADD causes several passes, and processing all of 250 endpoints takes half a millisecond in each.
package endpointfeed

import (
	"errors"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// FullPassInterval is the time between two passes over all endpoints, with or without changed rows.
const FullPassInterval = time.Minute

// Tables holds the tables with rows of endpoints: the desired endpoints, and their rows for the datapath.
type Tables struct {
	Endpoints statedb.Table[*endpoints.Endpoint]
	Facts     statedb.Table[*bpfendpoints.Facts]
	Links     statedb.Table[*bpfendpoints.Link]
	Addresses statedb.Table[*bpfendpoints.Address]
}

// Marks is the set of ids of endpoints to process. Id 0 means rows that belong to no endpoint.
type Marks map[uint16]bool

// Feed follows the changes of [Tables].
type Feed struct {
	endpoints *changefeed.Feed[*endpoints.Endpoint]
	facts     *changefeed.Feed[*bpfendpoints.Facts]
	links     *changefeed.Feed[*bpfendpoints.Link]
	addresses *changefeed.Feed[*bpfendpoints.Address]
}

// Subscribe returns a feed whose first [Feed.Next] marks the endpoints of all existing rows.
func Subscribe(db *statedb.DB, t Tables) (f Feed, err error) {
	txn := db.WriteTxn(t.Endpoints, t.Facts, t.Links, t.Addresses)
	defer txn.Commit()
	var errs [4]error
	f.endpoints, errs[0] = changefeed.Follow(txn, t.Endpoints)
	f.facts, errs[1] = changefeed.Follow(txn, t.Facts)
	f.links, errs[2] = changefeed.Follow(txn, t.Links)
	f.addresses, errs[3] = changefeed.Follow(txn, t.Addresses)
	return f, errors.Join(errs[:]...)
}

// Close ends the subscription of a feed whose [Subscribe] succeeded.
func (f Feed) Close() {
	f.endpoints.Close()
	f.facts.Close()
	f.links.Close()
	f.addresses.Close()
}

// Next marks the endpoints of rows that changed up to a snapshot, and adds channels to changed that close when there are more changes.
func (f Feed) Next(txn statedb.ReadTxn, changed *statedb.WatchSet) Marks {
	m := Marks{}
	Mark(m, f.endpoints.UpTo(txn, changed), func(r *endpoints.Endpoint) uint16 { return r.ID })
	Mark(m, f.facts.UpTo(txn, changed), func(r *bpfendpoints.Facts) uint16 { return r.ID })
	Mark(m, f.links.UpTo(txn, changed), func(r *bpfendpoints.Link) uint16 { return r.ID })
	Mark(m, f.addresses.UpTo(txn, changed), func(r *bpfendpoints.Address) uint16 { return r.ID })
	return m
}

// Mark adds the endpoints of changed rows.
func Mark[R any](m Marks, rows []statedb.Change[R], id func(R) uint16) {
	for _, change := range rows {
		m[id(change.Object)] = true
	}
}
