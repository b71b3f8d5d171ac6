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
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// settleLabels is the minimum time between two passes, which groups a burst of pod changes into few passes. The first pass starts at once, because policies
	// and peers depend on the labels.
	settleLabels = 50 * time.Millisecond
	// retryFiles is the time until state files whose write failed are written again.
	retryFiles = 5 * time.Second
)

// maxIncomplete limits the endpoints that a health report names.
const maxIncomplete = 3

// fromPod is the part of an endpoint that is derived from its pod.
type fromPod struct {
	labels  map[string]string   // including labels of other sources
	missing string              // names the missing labels and the reason
	ports   []k8s.ContainerPort // unknown while the labels of the pod are unknown
}

// ofPod returns the desired labels and ports of ep. The pod's labels replace all labels of the source k8s, and the pod's ports replace all ports. A row in the
// table of pods takes precedence over live, a pod that was read from the API server and may be nil. Without either ep keeps its labels and ports, because
// containers may run long after the object was deleted. All of it changes in one row, so no reader sees old labels that are marked complete, or new labels with
// old ports.
func (m *manager) ofPod(txn statedb.ReadTxn, ep *endpoints.Endpoint, live *k8s.Pod) fromPod {
	if ep.K8sPodName == "" {
		return fromPod{labels: ep.Labels}
	}
	if ep.Restored && !sources.Listed(txn, m.sources, m.pods.Name(), m.namespaces.Name()) {
		return fromPod{ep.Labels, ep.LabelsMissing, ep.Ports} // the file of ep is never older than a copy of the objects
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
	if !found && m.live != nil { // without Kubernetes no row of the namespace arrives
		missing = "labels of namespace " + ep.K8sNamespace + ", which is not read yet"
	}
	return fromPod{labels.MergeOtherSources(labels.OfPod(m.cluster, pod, namespace), ep.Labels), missing, pod.Ports}
}

// unread names the labels that are missing because the pod of an endpoint has no row. Without Kubernetes it returns an empty string once the manifests are
// read.
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
		return fmt.Sprintf("labels of pod %s: no manifests are read yet", ep.PodName())
	}
	return fmt.Sprintf("labels of pod %s: not all manifests are read: %s", ep.PodName(), source.WaitingFor)
}

// podOf returns the row of an endpoint's pod. A row with another UID is another incarnation of the pod and is ignored.
func (m *manager) podOf(txn statedb.ReadTxn, ep *endpoints.Endpoint) *k8s.Pod {
	pod, _, found := m.pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !found || !pod.HasUID(ep.K8sUID) {
		return nil
	}
	return pod
}

// SetLabels implements [endpoint.Manager]. It keeps labels of the source k8s, which users cannot change.
func (m *manager) SetLabels(id string, list []string) (*endpoints.Endpoint, error) {
	users, err := labels.Parse(list)
	if err != nil {
		return nil, fmt.Errorf("set labels: %w: %w", endpoint.ErrInvalid, err)
	}
	for key := range users {
		if labels.SourceOf(key) == labels.SourceK8s {
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
		if labels.SourceOf(key) == labels.SourceK8s {
			if wanted == nil {
				wanted = map[string]string{}
			}
			wanted[key] = value
		}
	}
	return m.relabel(ep, fromPod{wanted, ep.LabelsMissing, ep.Ports})
}

// relabel stores ep with other labels and ports. The caller must hold mu.
func (m *manager) relabel(ep *endpoints.Endpoint, now fromPod) (*endpoints.Endpoint, error) {
	changed := now.applyTo(ep)
	if changed == ep {
		return ep, nil
	}
	if err := m.store(changed); err != nil {
		return nil, fmt.Errorf("change the labels of endpoint %d: %w", ep.ID, err)
	}
	return changed, nil
}

// applyTo returns ep if it has these labels and ports, otherwise a changed copy.
func (now fromPod) applyTo(ep *endpoints.Endpoint) *endpoints.Endpoint {
	if maps.Equal(ep.Labels, now.labels) && ep.LabelsMissing == now.missing && slices.Equal(ep.Ports, now.ports) {
		return ep
	}
	changed := ep.Clone()
	changed.Labels, changed.LabelsMissing, changed.Ports = now.labels, now.missing, now.ports
	return changed
}

// follow stores ep with the labels and ports of its pod. It changes the row even when the file cannot be written, because an endpoint must not keep labels that
// its pod no longer has. The file is written again later. The caller must hold mu.
func (m *manager) follow(ep *endpoints.Endpoint, now fromPod) error {
	changed := now.applyTo(ep)
	if changed == ep && !m.behind[ep.ID] {
		return nil
	}
	err := m.files.Write(fileName(ep.ID), changed)
	if delete(m.behind, ep.ID); err != nil {
		m.behind[ep.ID] = true
		err = fmt.Errorf("write the labels of endpoint %d, which are in effect already: %w", ep.ID, err)
	}
	if changed == ep {
		return err
	}
	txn := m.db.WriteTxn(m.endpoints)
	defer txn.Commit()
	_, _, err2 := m.endpoints.Insert(txn, changed)
	return errors.Join(err, err2)
}

// followPods updates labels and ports of endpoints when their pods or namespaces change.
func (m *manager) followPods(ctx context.Context, health cell.Health) error {
	watchdog.Idle(ctx)
	if err := m.waitRestored(ctx); err != nil {
		return nil // the agent is stopping
	}
	defer m.closeLabels()
	options := loop.Options{Pause: settleLabels, Interval: endpointfeed.FullPassInterval}
	return loop.Run(ctx, m.db, options, func(r *loop.Round) error {
		r.Txn = nil // refreshLabels has its own snapshot
		changed, incomplete, err := m.refreshLabels()
		r.Changed.Merge(changed)
		switch {
		case err != nil:
			health.Degraded("state files of endpoints have stale labels; a restart would begin with them", err)
			r.Within(retryFiles)
		case len(incomplete) > 0:
			health.Degraded(fmt.Sprintf("labels of %d endpoints are incomplete", len(incomplete)),
				errors.Join(incomplete[:min(len(incomplete), maxIncomplete)]...))
		default:
			health.OK("labels follow pods and namespaces")
		}
		return nil
	})
}

// refreshLabels runs one pass. The snapshot is taken under mu, so an endpoint that is being created either sees the same pods or is in the snapshot. Incomplete
// has one error for each endpoint with missing labels.
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
