package labels

import (
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Keys of labels that describe the environment of a pod; they are Cilium's.
const (
	KeyNamespace       = "io.kubernetes.pod.namespace"
	KeyServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
	KeyCluster         = "io.cilium.k8s.policy.cluster"
	KeyNamespaceLabels = "io.cilium.k8s.namespace.labels" // followed by a dot and the key of the namespace's label
	KeyPolicy          = "io.cilium.k8s.policy"           // followed by a dot and a property of a policy, in the labels that identify it
)

const k8sPrefix = SourceK8s + ":"

// OfNamespace returns the labels that are known before the Pod object is: cluster and namespace.
func OfNamespace(cluster, namespace string) map[string]string {
	labels := map[string]string{k8sPrefix + KeyNamespace: namespace}
	if cluster != "" {
		labels[k8sPrefix+KeyCluster] = cluster
	}
	return labels
}

// OfPod returns the labels of a pod from its Kubernetes objects, with the source k8s; namespace may be nil. The labels of its environment come from metadata
// alone: a label of the pod under one of these keys is ignored, whether or not the actual one exists. Labels that cannot be part of the key of an identity
// are ignored too; the API server accepts no such labels.
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
		if !Surrounding(key) {
			add(labels, key, value)
		}
	}
	return labels
}

func add(labels map[string]string, key, value string) {
	if _, err := Parse([]string{k8sPrefix + key + "=" + value}); err == nil && !strings.Contains(key, "=") {
		labels[k8sPrefix+key] = value
	}
}
