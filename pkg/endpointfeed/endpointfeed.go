// Package endpointfeed tells a controller of which endpoints a row has changed, so that a pass looks only at those: an ADD
// makes several passes, and looking at all of 250 endpoints takes half a millisecond each time.
package endpointfeed

import (
	"context"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// FullPassInterval is how often every endpoint is to be looked at, whether or not a row of it has changed.
const FullPassInterval = time.Minute

// Tables are the rows of endpoints: what is wanted, and what the datapath is to know of it.
type Tables struct {
	Endpoints statedb.Table[*endpoints.Endpoint]
	Facts     statedb.Table[*bpfendpoints.Facts]
	Links     statedb.Table[*bpfendpoints.Link]
	Addresses statedb.Table[*bpfendpoints.Address]
}

// Marks are the ids of endpoints to look at. Id 0 marks rows that belong to no endpoint.
type Marks map[uint16]bool

// Feed follows the changes of [Tables].
type Feed struct {
	endpoints statedb.ChangeIterator[*endpoints.Endpoint]
	facts     statedb.ChangeIterator[*bpfendpoints.Facts]
	links     statedb.ChangeIterator[*bpfendpoints.Link]
	addresses statedb.ChangeIterator[*bpfendpoints.Address]
}

// Subscribe begins with everything that exists: the first [Feed.Next] marks all of it.
func Subscribe(db *statedb.DB, t Tables) (f Feed, err error) {
	txn := db.WriteTxn(t.Endpoints, t.Facts, t.Links, t.Addresses)
	defer txn.Commit()
	if f.endpoints, err = t.Endpoints.Changes(txn); err != nil {
		return f, err
	}
	if f.facts, err = t.Facts.Changes(txn); err != nil {
		return f, err
	}
	if f.links, err = t.Links.Changes(txn); err != nil {
		return f, err
	}
	f.addresses, err = t.Addresses.Changes(txn)
	return f, err
}

// Close ends the subscription of a feed whose [Subscribe] succeeded.
func (f Feed) Close() {
	f.endpoints.Close()
	f.facts.Close()
	f.links.Close()
	f.addresses.Close()
}

// Next marks what has changed up to a snapshot, and adds to changed what closes when more has.
func (f Feed) Next(txn statedb.ReadTxn, changed *statedb.WatchSet) Marks {
	m := Marks{}
	changed.Add(
		Follow(txn, f.endpoints, m, func(r *endpoints.Endpoint) uint16 { return r.ID }),
		Follow(txn, f.facts, m, func(r *bpfendpoints.Facts) uint16 { return r.ID }),
		Follow(txn, f.links, m, func(r *bpfendpoints.Link) uint16 { return r.ID }),
		Follow(txn, f.addresses, m, func(r *bpfendpoints.Address) uint16 { return r.ID }),
	)
	return m
}

// Follow marks the endpoints of the changed rows of one more table.
func Follow[R any](txn statedb.ReadTxn, in statedb.ChangeIterator[R], m Marks, id func(R) uint16) (more <-chan struct{}) {
	rows, more := in.Next(txn)
	for change := range rows {
		m[id(change.Object)] = true
	}
	return more
}

// Wait returns when an input changes. It says that a full pass is due when nothing has changed for long, and false when
// the agent stops.
func Wait(ctx context.Context, changed *statedb.WatchSet) (full, alive bool) {
	limited, cancel := context.WithTimeout(ctx, FullPassInterval)
	defer cancel()
	_, err := changed.Wait(limited, 0)
	return err != nil, ctx.Err() == nil
}
