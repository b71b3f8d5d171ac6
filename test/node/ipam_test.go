package node_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// forEachIPAM runs a test with both sources of the ranges of nodes.
func forEachIPAM(t *testing.T, test func(t *testing.T, ipam string)) {
	t.Helper()
	for _, ipam := range []string{agentconfig.IPAMKubernetes, agentconfig.IPAMClusterPool} {
		t.Run(ipam, func(t *testing.T) {
			t.Parallel()
			test(t, ipam)
		})
	}
}

// startKubeClusterWith does the same as startKubeCluster, with a source of the ranges of nodes.
func startKubeClusterWith(t *testing.T, ipam string, nodes int, agentArgs ...string) []kubeNode {
	t.Helper()
	c, all := newKubeCluster(t, nodes, agentArgs...)
	if ipam == agentconfig.IPAMClusterPool {
		for _, n := range all {
			n.useClusterPool("--cluster-pool-ipv4-cidr=10.244.0.0/16", "--cluster-pool-ipv6-cidr=fd00:10:244::/48")
		}
	}
	startAgents(t, c)
	return all
}

// useClusterPool lets the test write the ranges of a node whose agent does not run yet, in place of the cluster role.
func (n kubeNode) useClusterPool(args ...string) {
	n.AddAgentArgs(append([]string{"--ipam=" + agentconfig.IPAMClusterPool}, args...)...)
	n.putRanges(n.PodRanges()...)
}

// putRanges creates or updates the Node without ranges, and the CiliumNode with the ranges of the cluster role.
func (n kubeNode) putRanges(ranges ...string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name(), UID: types.UID("uid-" + n.Name())}}
	for _, family := range families {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.UplinkAddr(family.ipv6).String()})
	}
	object := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name()}}
	n.server.Get(kubeapi.CiliumNodes, "", n.Name(), object)
	object.Spec.IPAM.PodCIDRs = ranges
	n.server.Put(node, object)
}
