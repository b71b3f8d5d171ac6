package install

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// clusterToleration returns the toleration of the cluster role's pods that matches a taint, or nil.
func clusterToleration(t *testing.T, o Options, taint corev1.Taint) *corev1.Toleration {
	t.Helper()
	list := objects(t, o)["Deployment waggle-cluster"].(*appsv1.Deployment).Spec.Template.Spec.Tolerations
	i := slices.IndexFunc(list, func(one corev1.Toleration) bool { return one.ToleratesTaint(klog.Background(), &taint, false) })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// TestCluster_StartsBeforeTheNetwork: the agents of a new cluster wait for pod CIDRs from the cluster role, so it runs on nodes that are not ready.
func TestCluster_StartsBeforeTheNetwork(t *testing.T) {
	t.Parallel()
	for _, taint := range []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule},
		{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoExecute},
		{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoExecute},
	} {
		if clusterToleration(t, usual(), taint) == nil {
			t.Errorf("the taint %s is not tolerated", taint.ToString())
		}
	}
}

// TestCluster_ToleratesTheTaintOfTheOption: the key of the taint is an option, and only the agents remove taints with this key.
func TestCluster_ToleratesTheTaintOfTheOption(t *testing.T) {
	t.Parallel()
	options := usual()
	options.Set = []string{"agent-not-ready-taint-key=example.org/no-network"}
	if clusterToleration(t, options, corev1.Taint{Key: "example.org/no-network", Effect: corev1.TaintEffectNoExecute}) == nil {
		t.Error("the taint of --agent-not-ready-taint-key is not tolerated")
	}
}

// TestCluster_CanBeDrained: a replica that is evicted by a drain must not return to the same node.
func TestCluster_CanBeDrained(t *testing.T) {
	t.Parallel()
	for _, taint := range []corev1.Taint{
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
	} {
		if clusterToleration(t, usual(), taint) != nil {
			t.Errorf("the taint %s is tolerated", taint.ToString())
		}
	}
}

// TestCluster_LeavesDeadNodes: the ReplicaSet replaces a replica only after its eviction.
func TestCluster_LeavesDeadNodes(t *testing.T) {
	t.Parallel()
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		if one := clusterToleration(t, usual(), corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}); one == nil || one.TolerationSeconds == nil {
			t.Errorf("%s: want a toleration with a limit, got %+v", key, one)
		}
	}
}
