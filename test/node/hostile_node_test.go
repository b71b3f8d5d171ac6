package node_test

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The agent of one node claims in its objects the addresses and pod ranges of the other nodes, and their pods. With --ipam=cluster-pool, kubelets also claim
// addresses of pods as the addresses of their nodes. The other nodes keep their addresses, policies
// keep their pods apart, and the pods of claimed ranges are neither the world nor masqueraded, and have a Service.
func TestPrivilegedNative_HostileNode(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) {
		all := startKubeClusterWith(t, ipam, 2, "--routing-mode=native", "--auto-direct-node-routes")
		claimAll(t, all, ipam)
		policiesBetweenNodes(t, all)
		podsOfClaims(t, all)
	})
}

func TestPrivilegedTunnel_HostileNode(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) {
		all := startKubeClusterWith(t, ipam, 2, "--routing-mode=tunnel")
		for _, n := range all {
			awaitTunnel(t, n.Node, 2)
		}
		claimAll(t, all, ipam)
		policiesBetweenNodes(t, all)
		podsOfClaims(t, all)
	})
}

// podsOfClaims tests pods in the ranges that the hostile node claims: neither of the two nodes treats a pod of the other one as the entity world, packets
// between pods keep the addresses of pods, and a Service with a backend on the second node is reachable from both nodes and from outside.
func podsOfClaims(t *testing.T, all []kubeNode) {
	t.Helper()
	one, two := all[0], all[1]
	onTwo := newNodePair(t, two, one)
	one.awaitRow(t, "policies", "default/worldly")
	onOne := nodePair{near: one, far: two, worldly: one.startPod(t, "worldly-too", map[string]string{"app": "worldly"})}
	first := one.startPod(t, "first", map[string]string{"app": "open"})
	second := two.startPod(t, "second", map[string]string{"app": "open"})
	neighbour := two.startPod(t, "neighbour", map[string]string{"app": "open"})
	for _, family := range families {
		awaitIdentity(t, two, first.Addr(family.ipv6), one.identityOfCluster(t, first).Identity)
		awaitIdentity(t, one, second.Addr(family.ipv6), two.identityOfCluster(t, second).Identity)
	}
	t.Run("no pod of the other node is the world", func(t *testing.T) {
		for _, family := range families {
			for _, p := range []nodePair{onOne, onTwo} { // otherwise the pod could be unreachable for another reason
				if err := nodekit.Ping(p.worldly, outsideAddr(family.ipv6), 56); err != nil {
					t.Errorf("%s: pod %s to the world: %v", family.name, p.worldly.Name, err)
				}
			}
		}
		onTwo.checkNotWorld(t, first)
		onOne.checkNotWorld(t, second)
	})
	t.Run("packets keep the addresses of pods", func(t *testing.T) {
		onTwo.checkReaches(t, first, second)
		onOne.checkReaches(t, second, first)
	})
	for _, family := range families {
		t.Run("a Service of "+family.name, func(t *testing.T) { serveBetweenNodes(t, all, first, neighbour, second, family.ipv6, false) })
	}
}

// claimAll creates the objects of a hostile node and its pods, and waits until all nodes have read them. With --ipam=cluster-pool an admission policy prevents
// agents from writing ranges, so the CiliumNode has only the range of the cluster role.
func claimAll(t *testing.T, all []kubeNode, ipam string) {
	t.Helper()
	const name = "a-hostile-node"
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + name}, Spec: corev1.NodeSpec{PodCIDR: "10.66.0.0/24", PodCIDRs: []string{"10.66.0.0/24"}}}
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.66"}}
	claims := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "cn-" + name}}
	claims.Spec.IPAM.PodCIDRs = []string{"10.0.0.0/8", "fd00::/16"}
	var pods []ciliumv2.AddressPair
	for _, n := range all {
		for i, text := range n.PodRanges() {
			p := netip.MustParsePrefix(text).Masked()
			claims.Spec.IPAM.PodCIDRs = append(claims.Spec.IPAM.PodCIDRs, text, netip.PrefixFrom(p.Addr(), p.Bits()+1).String())
			addr := p.Addr()
			for range 20 {
				addr = addr.Next()
				pair := ciliumv2.AddressPair{IPv4: addr.String()}
				if i == 1 {
					pair = ciliumv2.AddressPair{IPv6: addr.String()}
				}
				pods = append(pods, pair)
				claims.Spec.Addresses = append(claims.Spec.Addresses, ciliumv2.NodeAddress{Type: ciliumv2.CiliumInternalIP, IP: addr.String()})
			}
		}
		for _, family := range families {
			addr := n.UplinkAddr(family.ipv6)
			claims.Spec.Addresses = append(claims.Spec.Addresses, ciliumv2.NodeAddress{Type: "InternalIP", IP: addr.String()})
			claims.Spec.IPAM.PodCIDRs = append(claims.Spec.IPAM.PodCIDRs, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	refused := "10.0.0.0/8: lies in no pod range of its Node"
	if ipam == agentconfig.IPAMClusterPool {
		claims.Spec.IPAM.PodCIDRs, object.Spec = object.Spec.PodCIDRs, corev1.NodeSpec{}
		refused = "lies in a range of pods of node " + all[0].Name()
	}
	all[0].server.Put(object, claims)
	if ipam == agentconfig.IPAMClusterPool {
		for i, pair := range pods {
			kubelet := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a-hostile-kubelet-", i), UID: types.UID(fmt.Sprint("uid-kubelet-", i))}}
			kubelet.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: pair.IPv4 + pair.IPv6}} // one of them is empty
			all[0].server.Put(kubelet)
		}
	}
	for i, pair := range pods {
		all[0].server.Put(&ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("claims-", i), Labels: map[string]string{ciliumv2.NodeLabel: name}},
			Status: ciliumv2.EndpointStatus{Identity: &ciliumv2.EndpointIdentity{ID: 300},
				Networking: &ciliumv2.EndpointNetworking{Addressing: []ciliumv2.AddressPair{pair}, Node: "198.51.100.66"}}})
	}
	for _, n := range all {
		n.awaitRow(t, "nodes", refused)
		if ipam == agentconfig.IPAMClusterPool {
			n.awaitRow(t, "nodes", fmt.Sprint("a-hostile-kubelet-", len(pods)-1))
		}
		n.awaitRow(t, "refused-claims", "outside-cidrs")
	}
}
