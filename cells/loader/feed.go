package loader

import (
	"context"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// fullPassInterval is how often every endpoint is looked at, whether or not a row of it has changed.
const fullPassInterval = time.Minute

// feed follows the rows of endpoints, so that a pass looks only at those that have changed: an ADD makes several passes,
// and looking at 200 endpoints ten times took a quarter of the agent's time for it.
type feed struct {
	endpoints statedb.ChangeIterator[*endpoints.Endpoint]
	facts     statedb.ChangeIterator[*bpfendpoints.Facts]
	links     statedb.ChangeIterator[*bpfendpoints.Link]
	addresses statedb.ChangeIterator[*bpfendpoints.Address]
}

func (c *controller) subscribe() (f feed, err error) {
	txn := c.DB.WriteTxn(c.Endpoints, c.Facts, c.Links, c.Addresses)
	defer txn.Commit()
	if f.endpoints, err = c.Endpoints.Changes(txn); err != nil {
		return f, err
	}
	if f.facts, err = c.Facts.Changes(txn); err != nil {
		return f, err
	}
	if f.links, err = c.Links.Changes(txn); err != nil {
		return f, err
	}
	f.addresses, err = c.Addresses.Changes(txn)
	return f, err
}

func (f feed) close() {
	f.endpoints.Close()
	f.facts.Close()
	f.links.Close()
	f.addresses.Close()
}

// marks are the ids of endpoints to look at.
type marks map[uint16]bool

// next marks what has changed up to a snapshot, and watches for more.
func (f feed) next(txn statedb.ReadTxn, changed *statedb.WatchSet) marks {
	m := marks{}
	changed.Add(
		follow(txn, f.endpoints, m, func(r *endpoints.Endpoint) uint16 { return r.ID }),
		follow(txn, f.facts, m, func(r *bpfendpoints.Facts) uint16 { return r.ID }),
		follow(txn, f.links, m, func(r *bpfendpoints.Link) uint16 { return r.ID }),
		follow(txn, f.addresses, m, func(r *bpfendpoints.Address) uint16 { return r.ID }),
	)
	return m
}

func follow[R any](txn statedb.ReadTxn, in statedb.ChangeIterator[R], m marks, id func(R) uint16) <-chan struct{} {
	rows, more := in.Next(txn)
	for change := range rows {
		m[id(change.Object)] = true
	}
	return more
}

// everything marks each endpoint and each attachment of one.
func (c *controller) everything(txn statedb.ReadTxn) marks {
	m := marks{}
	for ep := range c.Endpoints.All(txn) {
		m[ep.ID] = true
	}
	for row := range c.Table.All(txn) {
		m[row.EndpointID] = true
	}
	return m
}

// wait returns when an input changes. It says that a full pass is due when nothing has changed for long, and false when
// the agent stops.
func wait(ctx context.Context, changed *statedb.WatchSet) (full, alive bool) {
	limited, cancel := context.WithTimeout(ctx, fullPassInterval)
	defer cancel()
	_, err := changed.Wait(limited, 0)
	return err != nil, ctx.Err() == nil
}
