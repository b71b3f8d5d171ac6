package endpointmanager

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// collectFeed finds the endpoints whose verdict may have changed. Each ADD and DEL causes a scan, and a scan of the namespaces of all pods takes a millisecond
// with 200 pods on the node.
type collectFeed struct {
	collector

	links     *changefeed.Feed[*devices.Device]
	endpoints *changefeed.Feed[*endpoints.Endpoint]
	pods      *changefeed.Feed[*k8s.Pod]
	others    [2]statedb.Revision // revisions of sources and servers in the last call of next
	looked    time.Time           // time at which all endpoints were marked last
	of        map[int]map[uint16]bool
	index     map[uint16]int // index of the link of each endpoint, by local id; of is the reverse map
}

// follow subscribes to links, endpoints and pods. The feeds start with all existing rows.
func (c collector) follow() (*collectFeed, error) {
	f := &collectFeed{collector: c, of: map[int]map[uint16]bool{}, index: map[uint16]int{}}
	m := c.Manager
	txn := m.db.WriteTxn(c.Devices, m.endpoints, m.pods)
	defer txn.Commit()
	var errs [3]error
	f.links, errs[0] = changefeed.Follow(txn, c.Devices)
	f.endpoints, errs[1] = changefeed.Follow(txn, statedb.Table[*endpoints.Endpoint](m.endpoints))
	f.pods, errs[2] = changefeed.Follow(txn, m.pods)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("follow endpoints, their links and their pods: %w", err)
	}
	return f, nil
}

func (f *collectFeed) close() {
	f.links.Close()
	f.endpoints.Close()
	f.pods.Close()
}

// next returns the endpoints to scan, and adds to changed the channels that close at the next change. It returns nil, which means all endpoints, once a minute
// and when the rows of sources or API servers change.
func (f *collectFeed) next(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) endpointfeed.Marks {
	m, marked, pods := f.Manager, endpointfeed.Marks{}, map[string]bool{}
	for _, change := range f.endpoints.UpTo(txn, changed) {
		f.note(change.Object, change.Deleted)
		marked[change.Object.ID], pods[change.Object.PodName()] = true, true
	}
	for _, change := range f.links.UpTo(txn, changed) {
		for id := range f.of[change.Object.Index] {
			marked[id] = true
			if ep, _, found := m.endpoints.Get(txn, endpoints.ByID(id)); found {
				pods[ep.PodName()] = true
			}
		}
	}
	for _, change := range f.pods.UpTo(txn, changed) {
		pods[change.Object.Key()] = true
	}
	delete(pods, "")
	for name := range pods { // a younger sandbox is a proof against older sandboxes of the pod
		for ep := range m.endpoints.List(txn, endpoints.ByPod(name)) {
			marked[ep.ID] = true
		}
	}
	_, source := f.Sources.AllWatch(txn)
	_, server := m.servers.AllWatch(txn)
	changed.Add(source, server)
	others := [2]statedb.Revision{f.Sources.Revision(txn), m.servers.Revision(txn)}
	if others != f.others || now.Sub(f.looked) >= endpointfeed.FullPassInterval {
		f.others, f.looked = others, now
		return nil
	}
	return marked
}

// note records the link of an endpoint, or removes the record if the endpoint is gone.
func (f *collectFeed) note(ep *endpoints.Endpoint, gone bool) {
	if before, known := f.index[ep.ID]; known {
		if delete(f.of[before], ep.ID); len(f.of[before]) == 0 {
			delete(f.of, before)
		}
		delete(f.index, ep.ID)
	}
	if gone {
		return
	}
	if f.of[ep.HostIfIndex] == nil {
		f.of[ep.HostIfIndex] = map[uint16]bool{}
	}
	f.of[ep.HostIfIndex][ep.ID], f.index[ep.ID] = true, ep.HostIfIndex
}

// endpointsOf yields the marked endpoints and the suspects, by id; with nil marks all endpoints.
func (c collector) endpointsOf(txn statedb.ReadTxn, suspects map[uint16]*suspect, marked endpointfeed.Marks) iter.Seq[*endpoints.Endpoint] {
	table := c.Manager.endpoints
	if marked == nil {
		return statedb.ToSeq(table.All(txn))
	}
	for id := range suspects {
		marked[id] = true
	}
	return func(yield func(*endpoints.Endpoint) bool) {
		for _, id := range slices.Sorted(maps.Keys(marked)) {
			if ep, _, found := table.Get(txn, endpoints.ByID(id)); found && !yield(ep) {
				return
			}
		}
	}
}
