package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedAPIServer_GetsNodeState runs the whole agent against an API server on the node's own loopback. The Node provides the range; the CiliumNode
// and the annotations report the result. The taint stays, because no self-test has passed.
func TestPrivilegedAPIServer_GetsNodeState(t *testing.T) {
	t.Parallel()
	var server *kubetest.Server
	node := newNode(t, nodekit.Options{})
	if err := node.Do(func() error { server = kubetest.New(t); return nil }); err != nil {
		t.Fatal(err)
	}
	const taint = "node.cilium.io/agent-not-ready"
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.50.0.0/24", "fd00:50::/64"},
			Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.UplinkIPv4.Addr().String()}}}})
	node.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+server.URL(), "--ipam=kubernetes", "--annotate-k8s-node")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)

	var published ciliumv2.CiliumNode
	eventually(t, func() error {
		if !server.Get(kubeapi.CiliumNodes, "", "node-1", &published) {
			return errors.New("there is no CiliumNode")
		}
		if !slices.Equal(published.Spec.IPAM.PodCIDRs, []string{"10.50.0.0/24", "fd00:50::/64"}) || published.Spec.Health.IPv4 == "" {
			return fmt.Errorf("the CiliumNode has %+v", published.Spec)
		}
		var object corev1.Node
		server.Get(kubeapi.Nodes, "", "node-1", &object)
		if !lastapplied.Of(object.Annotations).Ours("network.cilium.io/ipv4-pod-cidr", "10.50.0.0/24") {
			return fmt.Errorf("the Node has %v", object.Annotations)
		}
		hasCondition := slices.ContainsFunc(object.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeNetworkUnavailable })
		if len(object.Spec.Taints) != 1 || hasCondition {
			return fmt.Errorf("before any self-test the Node has %v and %v", object.Spec.Taints, object.Status.Conditions)
		}
		rows, err := node.Waggle(t.Context(), "db", "show", "node-updates")
		if err == nil && !strings.Contains(rows, "the self-test attach to pass") {
			err = fmt.Errorf("it is not said what is missing:\n%s", rows)
		}
		return err
	})
	pod := addPod(t, node, "a")
	for _, addr := range []string{published.Spec.Health.IPv4, published.Spec.Health.IPv6} {
		if err := nodekit.Ping(pod, netip.MustParseAddr(addr), 56); err != nil {
			t.Errorf("the health address does not answer: %v", err)
		}
	}

	// A range that only the agent wrote is not a valid source when the Node has no ranges.
	var object corev1.Node
	server.Get(kubeapi.Nodes, "", "node-1", &object)
	object.Spec.PodCIDRs = nil
	server.Put(&object)
	eventually(t, func() error { // otherwise the copy on disk still offers the range
		rows, err := node.Waggle(t.Context(), "db", "show", "node-cidrs")
		if err == nil && !strings.Contains(rows, "no source names a range any longer") {
			err = fmt.Errorf("the ranges are:\n%s", rows)
		}
		return err
	})
	if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		rows, err := node.Waggle(t.Context(), "db", "show", "node-cidrs")
		if err == nil && (!strings.Contains(rows, "not used: written by this agent") || strings.Contains(rows, "true")) {
			err = fmt.Errorf("the ranges are:\n%s", rows)
		}
		return err
	})
}

// TestPrivilegedAPIServer_ClusterPool takes the CIDR from the CiliumNode, which the agent creates first.
func TestPrivilegedAPIServer_ClusterPool(t *testing.T) {
	t.Parallel()
	var server *kubetest.Server
	node := newNode(t, nodekit.Options{})
	if err := node.Do(func() error { server = kubetest.New(t); return nil }); err != nil {
		t.Fatal(err)
	}
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.50.0.0/24", "fd00:50::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.UplinkIPv4.Addr().String()}}}})
	node.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+server.URL(), "--ipam=cluster-pool")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	var object ciliumv2.CiliumNode
	server.Await(t, "the CiliumNode is made", func() bool { return server.Get(kubeapi.CiliumNodes, "", "node-1", &object) })
	eventually(t, func() error {
		status, err := node.Waggle(t.Context(), "db", "show", "local-node")
		if err == nil && !strings.Contains(status, "of the CiliumNode node-1") {
			err = fmt.Errorf("it is not said what is awaited:\n%s", status)
		}
		return err
	})

	// The test writes the ranges of the node in place of the cluster role.
	if len(object.Spec.IPAM.PodCIDRs) > 0 {
		t.Errorf("the agent wrote %v", object.Spec.IPAM.PodCIDRs)
	}
	given := []string{"10.60.0.0/24", "fd00:60::/64"}
	object.Spec.IPAM.PodCIDRs = given
	server.Put(&object)
	waitReady(t, node)
	if addr := addPod(t, node, "a").Addr(false); !netip.MustParsePrefix(given[0]).Contains(addr) {
		t.Errorf("the pod has %s", addr)
	}
	eventually(t, func() error {
		server.Get(kubeapi.CiliumNodes, "", "node-1", &object)
		if !slices.Equal(object.Spec.IPAM.PodCIDRs, given) || len(object.Spec.Addresses) != 3 || object.Spec.Health.IPv6 == "" {
			return fmt.Errorf("the CiliumNode has %+v", object.Spec)
		}
		return nil
	})
}
