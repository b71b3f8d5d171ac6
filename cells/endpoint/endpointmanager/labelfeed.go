package endpointmanager

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// labelFeed finds the endpoints whose labels or ports may differ from their pods' labels and ports, so that the cost of an ADD does not grow with the number of
// endpoints. The manager's mu guards it.
type labelFeed struct {
	endpoints  *changefeed.Feed[*endpoints.Endpoint]
	pods       *changefeed.Feed[*k8s.Pod]
	namespaces *changefeed.Feed[*k8s.Namespace]
	sources    statedb.Revision // revision of the table in the last pass
	whole      time.Time        // time at which all endpoints were marked last
	incomplete map[uint16]error // endpoints with missing labels
}

// newLabelFeed subscribes to endpoints, pods and namespaces. The feeds start with all existing rows.
func (m *manager) newLabelFeed() (*labelFeed, error) {
	f := &labelFeed{incomplete: map[uint16]error{}}
	txn := m.db.WriteTxn(m.endpoints, m.pods, m.namespaces)
	defer txn.Commit()
	var errs [3]error
	f.endpoints, errs[0] = changefeed.Follow(txn, m.endpoints)
	f.pods, errs[1] = changefeed.Follow(txn, m.pods)
	f.namespaces, errs[2] = changefeed.Follow(txn, m.namespaces)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("follow endpoints and their pods: %w", err)
	}
	return f, nil
}

// closeLabels closes the feeds.
func (m *manager) closeLabels() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.labels != nil {
		m.labels.endpoints.Close()
		m.labels.pods.Close()
		m.labels.namespaces.Close()
		m.labels = nil
	}
}

// next returns the endpoints to compare: those with changed rows and those whose file lags behind the row. It returns all endpoints once a minute and when the
// sources of the objects change. It adds to changed the channels that close at the next change.
func (f *labelFeed) next(txn statedb.ReadTxn, m *manager, changed *statedb.WatchSet) endpointfeed.Marks {
	marked := endpointfeed.Marks{}
	rows := statedb.NewWatchSet()
	endpointfeed.Mark(marked, f.endpoints.UpTo(txn, rows), func(ep *endpoints.Endpoint) uint16 { return ep.ID })
	if m.live != nil {
		changed.Merge(rows) // a new endpoint may have missing labels to report
	}
	for _, change := range f.pods.UpTo(txn, changed) {
		for ep := range m.endpoints.List(txn, endpoints.ByPod(change.Object.Key())) {
			marked[ep.ID] = true
		}
	}
	of := map[string]bool{}
	for _, change := range f.namespaces.UpTo(txn, changed) {
		of[change.Object.Name] = true
	}
	_, sourcesChanged := m.sources.AllWatch(txn)
	changed.Add(sourcesChanged)
	at := m.sources.Revision(txn)
	all := at != f.sources || time.Since(f.whole) >= endpointfeed.FullPassInterval
	if f.sources = at; all {
		f.whole = time.Now()
	}
	if all || len(of) > 0 {
		for ep := range m.endpoints.All(txn) {
			if all || of[ep.K8sNamespace] {
				marked[ep.ID] = true
			}
		}
	}
	maps.Copy(marked, m.behind)
	return marked
}
