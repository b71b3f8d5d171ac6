package labels

import (
	"strings"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Keys of the labels that come from what surrounds a pod; they are Cilium's.
const (
	KeyNamespace       = endpoint.KeyNamespace
	KeyServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
	KeyCluster         = "io.cilium.k8s.policy.cluster"
	KeyNamespaceLabels = "io.cilium.k8s.namespace.labels" // behind it a dot and the namespace's own key
)

const k8sPrefix = endpoint.SourceK8s + ":"

// OfNamespace is what is known of a pod before it is known itself: where it runs.
func OfNamespace(cluster, namespace string) map[string]string {
	labels := map[string]string{k8sPrefix + KeyNamespace: namespace}
	if cluster != "" {
		labels[k8sPrefix+KeyCluster] = cluster
	}
	return labels
}

// OfPod collects what Kubernetes says about a pod, with the source k8s; namespace may be nil. What surrounds the pod comes
// from its metadata alone: a label of the pod itself under one of those keys is left out, whether or not the true one is
// there. Labels that cannot stand in the key of an identity are left out as well; the API server accepts none of these.
func OfPod(cluster string, pod *k8s.Pod, namespace *k8s.Namespace) map[string]string {
	labels := OfNamespace(cluster, pod.Namespace)
	if pod.ServiceAccount != "" {
		labels[k8sPrefix+KeyServiceAccount] = pod.ServiceAccount
	}
	if namespace != nil {
		for key, value := range namespace.Labels {
			add(labels, KeyNamespaceLabels+"."+key, value)
		}
	}
	for key, value := range pod.Labels {
		if !endpoint.Surrounding(key) {
			add(labels, key, value)
		}
	}
	return labels
}

func add(labels map[string]string, key, value string) {
	if _, err := endpoint.ParseLabels([]string{k8sPrefix + key + "=" + value}); err == nil && !strings.Contains(key, "=") {
		labels[k8sPrefix+key] = value
	}
}
