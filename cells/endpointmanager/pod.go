package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

const (
	// podWait is how long an ADD waits for the rows of its pod; the watch is usually a few milliseconds behind kubelet.
	podWait = time.Second
	// podGetTimeout bounds the one question to the API server after that.
	podGetTimeout = 1500 * time.Millisecond
)

// livePods asks the API server for one pod; nil means that Kubernetes is off.
type livePods func(ctx context.Context, namespace, name string) (*k8s.Pod, error)

func newPodSource(client *kubeapi.Client, s settings.Agent) livePods {
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

// learnPod sees to it that the labels and ports of a new endpoint's pod are known: it waits for the pod's row, which the plugin may
// outrun, and then asks the API server once. When neither helps, ep gets the labels of the place where it runs and the
// reason; the pod's own follow with its row.
func (m *manager) learnPod(ctx context.Context, ep *endpoints.Endpoint) *k8s.Pod {
	if m.live == nil || ep.K8sPodName == "" || m.awaitPod(ctx, ep) {
		return nil
	}
	pod, err := m.live(ctx, ep.K8sNamespace, ep.K8sPodName)
	if err == nil && !pod.HasUID(ep.K8sUID) {
		err = errors.New("the API server knows another pod of this name, with UID " + pod.UID)
	}
	if err != nil {
		ep.Labels = endpoint.WithOthers(labels.OfNamespace(m.cluster, ep.K8sNamespace), ep.Labels)
		ep.LabelsMissing = fmt.Sprintf("those of pod %s, which the watch has not shown: %s", ep.PodName(), err)
		m.log.Warn("The labels of a new pod are not known yet", "pod", ep.PodName(), "error", err)
		return nil
	}
	return pod
}

// awaitPod waits a while for the rows of a pod and its namespace, and says whether the pod's is there. It does not wait
// for what cannot come: rows of an API server that does not answer.
func (m *manager) awaitPod(ctx context.Context, ep *endpoints.Endpoint) bool {
	limit := time.NewTimer(podWait)
	defer limit.Stop()
	for {
		txn := m.db.ReadTxn()
		_, _, podChanged, _ := m.pods.GetWatch(txn, k8s.PodByName(ep.PodName()))
		_, _, namespaceChanged, namespace := m.namespaces.GetWatch(txn, k8s.NamespaceByName(ep.K8sNamespace))
		found := m.podOf(txn, ep) != nil
		if found && namespace || apiservers.Away(txn, m.servers) {
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
