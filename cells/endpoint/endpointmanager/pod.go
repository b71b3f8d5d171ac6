package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

const (
	// podWait is the time that an ADD waits for the rows of its pod. The watch is usually a few milliseconds behind kubelet.
	podWait = time.Second
	// podGetTimeout is the timeout of the single request to the API server after podWait.
	podGetTimeout = 1500 * time.Millisecond
)

// livePods reads one pod from the API server; nil means that Kubernetes is off.
type livePods func(ctx context.Context, namespace, name string) (*k8s.Pod, error)

func newPodSource(client *kubeapi.Client, s agentconfig.Agent) livePods {
	if client == nil {
		return nil
	}
	return func(ctx context.Context, namespace, name string) (*k8s.Pod, error) {
		ctx, cancel := context.WithTimeout(ctx, podGetTimeout)
		defer cancel()
		var o corev1.Pod
		if err := client.Get(ctx, kubeapi.Pods, namespace, name, &o); err != nil {
			return nil, err
		}
		if o.Spec.NodeName != s.NodeName {
			return nil, fmt.Errorf("pod %s/%s is on node %q, and this is %s", namespace, name, o.Spec.NodeName, s.NodeName)
		}
		return &k8s.Pod{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), NodeName: o.Spec.NodeName,
			StaticUID: o.Annotations[corev1.MirrorPodAnnotationKey], ServiceAccount: o.Spec.ServiceAccountName, Labels: o.Labels,
			Ports: k8sobjects.PodPorts(&o.Spec)}, nil
	}
}

// learnPod ensures that the labels and ports of a new endpoint's pod are known. It waits for the row of the pod, which may arrive after the request of the
// plugin, and then reads the pod from the API server once. If both fail, ep gets the labels of its namespace's name and the cluster, and the reason; the labels
// of the pod follow with its row.
func (m *manager) learnPod(ctx context.Context, ep *endpoints.Endpoint) *k8s.Pod {
	if m.live == nil || ep.K8sPodName == "" || m.awaitPod(ctx, ep) {
		return nil
	}
	pod, err := m.live(ctx, ep.K8sNamespace, ep.K8sPodName)
	if err == nil && !pod.HasUID(ep.K8sUID) {
		err = errors.New("the API server has another pod of this name, with UID " + pod.UID)
	}
	if err != nil {
		ep.Labels = labels.MergeOtherSources(labels.OfNamespace(m.cluster, ep.K8sNamespace), ep.Labels)
		ep.LabelsMissing = fmt.Sprintf("labels of pod %s, which the watch has not delivered: %s", ep.PodName(), err)
		m.log.Warn("The labels of a new pod are not known yet", "pod", ep.PodName(), "error", err)
		return nil
	}
	return pod
}

// awaitPod waits up to podWait for the rows of a pod and its namespace, and reports whether the row of the pod exists. It does not wait while no API server
// responds.
func (m *manager) awaitPod(ctx context.Context, ep *endpoints.Endpoint) bool {
	limit := time.NewTimer(podWait)
	defer limit.Stop()
	for {
		txn := m.db.ReadTxn()
		_, _, podChanged, _ := m.pods.GetWatch(txn, k8s.PodByName(ep.PodName()))
		_, _, namespaceChanged, namespace := m.namespaces.GetWatch(txn, k8s.NamespaceByName(ep.K8sNamespace))
		found := m.podOf(txn, ep) != nil
		if found && namespace || apiservers.AllUnreachable(txn, m.servers) {
			return found
		}
		select {
		case <-podChanged:
		case <-namespaceChanged:
		case <-limit.C:
			return found
		case <-ctx.Done():
			return found
		}
	}
}
