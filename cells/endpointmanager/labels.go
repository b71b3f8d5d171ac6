package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Keys of the labels that come from what surrounds a pod; they are Cilium's.
const (
	keyNamespace       = "k8s:io.kubernetes.pod.namespace"
	keyServiceAccount  = "k8s:io.cilium.k8s.policy.serviceaccount"
	keyNamespaceLabels = "k8s:io.cilium.k8s.namespace.labels."
)

// settleLabels turns a burst of changed pods into one pass. No request waits for it.
const settleLabels = 50 * time.Millisecond

// withPodLabels returns the labels that ep should have: those of its pod in the place of all that have the source k8s.
// Without a row of the pod ep keeps what it has; a row with another UID is of another incarnation.
func (m *manager) withPodLabels(txn statedb.ReadTxn, ep *endpoints.Endpoint) map[string]string {
	if ep.K8sPodName == "" {
		return ep.Labels
	}
	pod, _, found := m.pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !found || (ep.K8sUID != "" && pod.UID != "" && ep.K8sUID != pod.UID) {
		return ep.Labels
	}
	namespace, _, _ := m.namespaces.Get(txn, k8s.NamespaceByName(ep.K8sNamespace))
	labels := podLabels(pod, namespace)
	for key, value := range ep.Labels {
		if endpoint.LabelSource(key) != endpoint.SourceK8s {
			labels[key] = value
		}
	}
	return labels
}

// podLabels collects what Kubernetes says about a pod; namespace may be nil.
func podLabels(pod *k8s.Pod, namespace *k8s.Namespace) map[string]string {
	labels := map[string]string{keyNamespace: pod.Namespace}
	if pod.ServiceAccount != "" {
		labels[keyServiceAccount] = pod.ServiceAccount
	}
	if namespace != nil {
		for key, value := range namespace.Labels {
			labels[keyNamespaceLabels+key] = value
		}
	}
	for key, value := range pod.Labels {
		// A pod may not name itself into another namespace or service account.
		if _, taken := labels["k8s:"+key]; !taken {
			labels["k8s:"+key] = value
		}
	}
	return labels
}

// SetLabels implements [endpoint.Manager]. Labels of the source k8s stay: they are not the user's.
func (m *manager) SetLabels(id string, list []string) (*endpoints.Endpoint, error) {
	labels, err := endpoint.ParseLabels(list)
	if err != nil {
		return nil, fmt.Errorf("set labels: %w: %w", endpoint.ErrInvalid, err)
	}
	for key := range labels {
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
	wanted := maps.Clone(labels)
	for key, value := range ep.Labels {
		if endpoint.LabelSource(key) == endpoint.SourceK8s {
			if wanted == nil {
				wanted = map[string]string{}
			}
			wanted[key] = value
		}
	}
	return m.relabel(ep, wanted)
}

// relabel stores ep with other labels. Call it with mu held.
func (m *manager) relabel(ep *endpoints.Endpoint, labels map[string]string) (*endpoints.Endpoint, error) {
	if maps.Equal(ep.Labels, labels) {
		return ep, nil
	}
	changed := ep.Clone()
	changed.Labels = labels
	if err := m.store(changed); err != nil {
		return nil, fmt.Errorf("change the labels of endpoint %d: %w", ep.ID, err)
	}
	return changed, nil
}

// followPods keeps the labels of endpoints those of their pods.
func (m *manager) followPods(ctx context.Context, health cell.Health) error {
	if err := m.waitRestored(ctx); err != nil {
		return nil // the agent stops
	}
	for {
		changed, err := m.refreshLabels()
		if err != nil {
			health.Degraded("labels of endpoints are out of date", err)
			return err
		}
		health.OK("labels follow pods and namespaces")
		if _, err := changed.Wait(ctx, settleLabels); err != nil {
			return nil // the agent stops
		}
	}
}

// refreshLabels does one pass. The snapshot is taken under mu: an endpoint that is being created either sees the same
// pods or is in the snapshot.
func (m *manager) refreshLabels() (*statedb.WatchSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.db.ReadTxn()
	_, podsChanged := m.pods.AllWatch(txn)
	_, namespacesChanged := m.namespaces.AllWatch(txn)
	var errs []error
	for ep := range m.endpoints.All(txn) {
		_, err := m.relabel(ep, m.withPodLabels(txn, ep))
		errs = append(errs, err)
	}
	changed := statedb.NewWatchSet()
	changed.Add(podsChanged, namespacesChanged)
	return changed, errors.Join(errs...)
}
