package k8sobjects_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/policy"
)

// TestNetworkPolicy_InvalidLabelValuesMatchNoPod: old versions of Kubernetes accepted label values in NetworkPolicies that no pod can have, and the API
// server keeps them. They match no pod, neither as subject nor as peer.
func TestNetworkPolicy_InvalidLabelValuesMatchNoPod(t *testing.T) {
	t.Parallel()
	value := metav1.LabelSelector{MatchLabels: map[string]string{"app": "my app"}}
	in := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"my app"}}}}
	notIn := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "NotIn", Values: []string{"my app"}}}}
	pod := map[string]string{"k8s:io.kubernetes.pod.namespace": "d", "k8s:app": "web"}
	for name, selector := range map[string]metav1.LabelSelector{"a value": value, "In": in, "NotIn": notIn} {
		subject := k8sobjects.NetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: selector}})
		require.Empty(t, subject.Invalid, name)
		part := policy.FromKubernetes(subject, policy.Environment{}).Parts[0]
		require.False(t, part.Subject.Matches(pod), name)

		peer := k8sobjects.NetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &selector}, {PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}}})
		require.Empty(t, peer.Ingress[0].Invalid, name)
		peers := policy.FromKubernetes(peer, policy.Environment{}).Parts[0].Rules[0].Peers
		require.Len(t, peers.List, 2, name)
		require.False(t, peers.List[0].Labels.Matches(pod), name)
		require.True(t, peers.List[1].Labels.Matches(pod), name)
	}
}
