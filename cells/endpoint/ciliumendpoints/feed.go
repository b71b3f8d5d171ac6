package ciliumendpoints

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// feed follows the rows from which objects are computed.
type feed struct {
	endpoints *changefeed.Feed[*endpoints.Endpoint]
	of        *changefeed.Feed[*identities.EndpointIdentity]
	states    *changefeed.Feed[*endpointstates.EndpointState]
	pods      *changefeed.Feed[*k8s.Pod]
}

// subscribe starts with all existing rows.
func (c *controller) subscribe() error {
	c.podOf, c.marked, c.nameless, c.whole = map[uint16]string{}, map[string]bool{}, map[string]error{}, time.Time{}
	txn := c.DB.WriteTxn(c.Endpoints, c.Of, c.States, c.Pods)
	defer txn.Commit()
	var errs [4]error
	c.feed.endpoints, errs[0] = changefeed.Follow(txn, c.Endpoints)
	c.feed.of, errs[1] = changefeed.Follow(txn, c.Of)
	c.feed.states, errs[2] = changefeed.Follow(txn, c.States)
	c.feed.pods, errs[3] = changefeed.Follow(txn, c.Pods)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("follow endpoints and their pods: %w", err)
	}
	return nil
}

func (f feed) close() {
	f.endpoints.Close()
	f.of.Close()
	f.states.Close()
	f.pods.Close()
}

// follow marks the pods with changes, and adds to changed the channels that close at the next change. At the time of its change an id may already belong to an
// endpoint of another pod, so both pods are marked.
func (c *controller) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	ids := endpointfeed.Marks{}
	for _, change := range c.feed.endpoints.UpTo(txn, changed) {
		ep := change.Object
		ids[ep.ID] = true
		if before, known := c.podOf[ep.ID]; known {
			c.marked[before] = true
		}
		if c.podOf[ep.ID] = ep.PodName(); change.Deleted {
			delete(c.podOf, ep.ID)
		}
	}
	endpointfeed.Mark(ids, c.feed.of.UpTo(txn, changed), func(r *identities.EndpointIdentity) uint16 { return r.EndpointID })
	endpointfeed.Mark(ids, c.feed.states.UpTo(txn, changed), func(r *endpointstates.EndpointState) uint16 { return r.ID })
	for id := range ids {
		if name, known := c.podOf[id]; known {
			c.marked[name] = true
		}
	}
	for _, change := range c.feed.pods.UpTo(txn, changed) {
		c.marked[change.Object.Key()] = true
	}
	if address := c.address(txn); address != c.node || time.Since(c.whole) >= endpointfeed.FullPassInterval {
		c.node, c.whole = address, time.Now()
		for row := range c.Wanted.All(txn) {
			c.marked[row.Key()] = true
		}
		for ep := range c.Endpoints.All(txn) {
			c.marked[ep.PodName()] = true
		}
	}
}
