package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

const (
	// settleLabels turns a burst of changed pods into few passes, of which the first comes at once: policies and peers go by the labels.
	settleLabels = 50 * time.Millisecond
	// retryFiles is when state files that could not be written are tried again.
	retryFiles = 5 * time.Second
)

// maxIncomplete bounds how many endpoints a health report names.
const maxIncomplete = 3

// fromPod is what an endpoint has of its pod.
type fromPod struct {
	labels  map[string]string   // and those of other sources
	missing string              // which labels are not known, and why
	ports   []k8s.ContainerPort // not known while the pod's labels are not
}

// ofPod returns what ep should have: the labels of its pod in the place of all that have the source k8s, and the pod's ports. The table
// of pods knows better than live, a pod that was asked for and may be nil. Without either ep keeps what it has: its containers may run
// for long when the object is gone. All of it changes in one row, so nobody ever takes old labels for all that there are, or their
// ports for those of others.
func (m *manager) ofPod(txn statedb.ReadTxn, ep *endpoints.Endpoint, live *k8s.Pod) fromPod {
	if ep.K8sPodName == "" {
		return fromPod{labels: ep.Labels}
	}
	if ep.Restored && !sources.Listed(txn, m.sources, m.pods.Name(), m.namespaces.Name()) {
		return fromPod{ep.Labels, ep.LabelsMissing, ep.Ports} // its file is never older than a copy of the objects
	}
	pod := m.podOf(txn, ep)
	if pod == nil {
		pod = live
	}
	if pod == nil {
		return fromPod{ep.Labels, m.unread(txn, ep), ep.Ports}
	}
	namespace, _, found := m.namespaces.Get(txn, k8s.NamespaceByName(ep.K8sNamespace))
	missing := ""
	if !found && m.live != nil { // without Kubernetes what is not there will not come
		missing = "those of namespace " + ep.K8sNamespace + ", which is not read yet"
	}
	return fromPod{endpoint.WithOthers(labels.OfPod(m.cluster, pod, namespace), ep.Labels), missing, pod.Ports}
}

// unread says which labels of an endpoint may come yet, whose pod is not there. Without Kubernetes that ends when the manifests
// are read.
func (m *manager) unread(txn statedb.ReadTxn, ep *endpoints.Endpoint) string {
	if m.live != nil {
		return ep.LabelsMissing
	}
	source, _, _ := m.sources.Get(txn, sources.ByTable(m.pods.Name()))
	switch {
	case source.State == sources.Synced:
		return ""
	case ep.Restored:
		return ep.LabelsMissing
	case source.WaitingFor == "":
		return fmt.Sprintf("those of pod %s: no manifests are read yet", ep.PodName())
	}
	return fmt.Sprintf("those of pod %s: the manifests are not all read: %s", ep.PodName(), source.WaitingFor)
}

// podOf finds the row of an endpoint's pod; one with another UID is of another incarnation.
func (m *manager) podOf(txn statedb.ReadTxn, ep *endpoints.Endpoint) *k8s.Pod {
	pod, _, found := m.pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !found || !pod.HasUID(ep.K8sUID) {
		return nil
	}
	return pod
}

// SetLabels implements [endpoint.Manager]. Labels of the source k8s stay: they are not the user's.
func (m *manager) SetLabels(id string, list []string) (*endpoints.Endpoint, error) {
	users, err := endpoint.ParseLabels(list)
	if err != nil {
		return nil, fmt.Errorf("set labels: %w: %w", endpoint.ErrInvalid, err)
	}
	for key := range users {
		if endpoint.LabelSource(key) == endpoint.SourceK8s {
			return nil, fmt.Errorf("set labels: %w: labels of the source k8s come from the pod", endpoint.ErrInvalid)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ep, err := m.Lookup(id)
	if err != nil {
		return nil, fmt.Errorf("set labels: %w", err)
	}
	wanted := maps.Clone(users)
	for key, value := range ep.Labels {
		if endpoint.LabelSource(key) == endpoint.SourceK8s {
			if wanted == nil {
				wanted = map[string]string{}
			}
			wanted[key] = value
		}
	}
	return m.relabel(ep, fromPod{wanted, ep.LabelsMissing, ep.Ports})
}

// relabel stores ep with other labels and ports. Call it with mu held.
func (m *manager) relabel(ep *endpoints.Endpoint, now fromPod) (*endpoints.Endpoint, error) {
	changed := now.of(ep)
	if changed == ep {
		return ep, nil
	}
	if err := m.store(changed); err != nil {
		return nil, fmt.Errorf("change the labels of endpoint %d: %w", ep.ID, err)
	}
	return changed, nil
}

// of returns ep when it has all this, or a copy that does.
func (now fromPod) of(ep *endpoints.Endpoint) *endpoints.Endpoint {
	if maps.Equal(ep.Labels, now.labels) && ep.LabelsMissing == now.missing && slices.Equal(ep.Ports, now.ports) {
		return ep
	}
	changed := ep.Clone()
	changed.Labels, changed.LabelsMissing, changed.Ports = now.labels, now.missing, now.ports
	return changed
}

// follow is relabel for what pods and namespaces say. The row changes also when the file cannot be written: nobody goes on with labels
// that a pod has no more. The file is tried again. Call it with mu held.
func (m *manager) follow(ep *endpoints.Endpoint, now fromPod) error {
	changed := now.of(ep)
	if changed == ep && !m.behind[ep.ID] {
		return nil
	}
	err := m.files.Write(fileName(ep.ID), changed)
	if delete(m.behind, ep.ID); err != nil {
		m.behind[ep.ID] = true
		err = fmt.Errorf("write down the labels of endpoint %d, which count all the same: %w", ep.ID, err)
	}
	if changed == ep {
		return err
	}
	txn := m.db.WriteTxn(m.endpoints)
	defer txn.Commit()
	_, _, err2 := m.endpoints.Insert(txn, changed)
	return errors.Join(err, err2)
}

// followPods keeps the labels and ports of endpoints those of their pods.
func (m *manager) followPods(ctx context.Context, health cell.Health) error {
	heartbeat.Idle(ctx)
	if err := m.waitRestored(ctx); err != nil {
		return nil // the agent stops
	}
	defer m.closeLabels()
	for {
		heartbeat.Busy(ctx)
		changed, incomplete, err := m.refreshLabels()
		next := endpointfeed.FullPassInterval
		switch {
		case err != nil:
			health.Degraded("labels of endpoints are not on file; a restart would begin with those of before", err)
			next = retryFiles
		case len(incomplete) > 0:
			health.Degraded(fmt.Sprintf("labels of %d endpoints are incomplete", len(incomplete)),
				errors.Join(incomplete[:min(len(incomplete), maxIncomplete)]...))
		default:
			health.OK("labels follow pods and namespaces")
		}
		if heartbeat.Sleep(ctx, settleLabels) == nil {
			heartbeat.IdleFor(ctx, next)
			wait, cancel := context.WithTimeout(ctx, next)
			_, _ = changed.Wait(wait, 0) // an error is the end of the time or of ctx
			cancel()
		}
		if ctx.Err() != nil {
			return nil // the agent stops
		}
	}
}

// refreshLabels does one pass. The snapshot is taken under mu: an endpoint that is being created either sees the same
// pods or is in the snapshot. Incomplete names the endpoints of which labels are not known.
func (m *manager) refreshLabels() (changed *statedb.WatchSet, incomplete []error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = statedb.NewWatchSet()
	if m.labels == nil {
		if m.labels, err = m.newLabelFeed(); err != nil {
			return changed, nil, err
		}
	}
	txn := m.db.ReadTxn()
	marked := m.labels.next(txn, m, changed)
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(marked)) {
		delete(m.labels.incomplete, id)
		ep, _, found := m.endpoints.Get(txn, endpoints.ByID(id))
		if !found {
			delete(m.behind, id)
			continue
		}
		now := m.ofPod(txn, ep, nil)
		errs = append(errs, m.follow(ep, now))
		if now.missing != "" {
			m.labels.incomplete[id] = fmt.Errorf("endpoint %d (%s): %s", ep.ID, describe(ep), now.missing)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.labels.incomplete)) {
		incomplete = append(incomplete, m.labels.incomplete[id])
	}
	return changed, incomplete, errors.Join(errs...)
}
