package endpointstate

import (
	"context"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// fullPassInterval is how often every endpoint is looked at, whether or not a row of it has changed.
const fullPassInterval = time.Minute

// feed follows the changes of the inputs, so that a pass looks only at endpoints of which a row has changed: on the path
// of a request there are several passes, and looking at 250 endpoints takes half a millisecond each time.
type feed struct {
	endpoints   statedb.ChangeIterator[*endpoints.Endpoint]
	facts       statedb.ChangeIterator[*bpfendpoints.Facts]
	links       statedb.ChangeIterator[*bpfendpoints.Link]
	addresses   statedb.ChangeIterator[*bpfendpoints.Address]
	attachments statedb.ChangeIterator[*attachments.Attachment]
}

// subscribe begins with everything that exists: the first batch of changes is a full pass.
func (c *controller) subscribe() (f feed, err error) {
	txn := c.DB.WriteTxn(c.Endpoints, c.Facts, c.Links, c.Addresses, c.Attachments)
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
	if f.addresses, err = c.Addresses.Changes(txn); err != nil {
		return f, err
	}
	f.attachments, err = c.Attachments.Changes(txn)
	return f, err
}

func (f feed) close() {
	f.endpoints.Close()
	f.facts.Close()
	f.links.Close()
	f.addresses.Close()
	f.attachments.Close()
}

// marks are the ids of endpoints to look at.
type marks struct {
	ids map[uint16]bool
	all bool // a row that concerns every endpoint has changed
}

// next marks what has changed up to a snapshot, and returns what closes when more has.
func (f feed) next(txn statedb.ReadTxn, changed *statedb.WatchSet) marks {
	m := marks{ids: map[uint16]bool{}}
	changed.Add(
		follow(txn, f.endpoints, m, func(r *endpoints.Endpoint) uint16 { return r.ID }),
		follow(txn, f.facts, m, func(r *bpfendpoints.Facts) uint16 { return r.ID }),
		follow(txn, f.links, m, func(r *bpfendpoints.Link) uint16 { return r.ID }),
		follow(txn, f.addresses, m, func(r *bpfendpoints.Address) uint16 { return r.ID }),
	)
	rows, more := f.attachments.Next(txn)
	changed.Add(more)
	for change := range rows {
		m.ids[change.Object.EndpointID] = true
		m.all = m.all || change.Object.EndpointID == 0 // the programs that all links share
	}
	delete(m.ids, 0)
	return m
}

func follow[R any](txn statedb.ReadTxn, in statedb.ChangeIterator[R], m marks, id func(R) uint16) <-chan struct{} {
	rows, more := in.Next(txn)
	for change := range rows {
		m.ids[id(change.Object)] = true
	}
	return more
}

// everything marks each endpoint and each state.
func (c *controller) everything(txn statedb.ReadTxn) marks {
	m := marks{ids: map[uint16]bool{}}
	for row := range c.Endpoints.All(txn) {
		m.ids[row.ID] = true
	}
	for row := range c.States.All(txn) {
		m.ids[row.ID] = true
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
