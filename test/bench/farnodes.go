package main

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// Size of the large cluster in addition to its two real nodes.
const (
	farNodes      = 5000
	farPodsOfNode = 30
	farIdentities = 2000
)

// The same sizes as text.
const manyNodes, manyPods = "5,000 nodes", "150,000 pods of other nodes"

// Ranges of far nodes and their pods. [farHosts] receives the packets to these ranges.
var (
	farUnderlay = netip.MustParsePrefix("198.18.0.0/15")
	farInner    = netip.MustParsePrefix("10.128.0.0/10")
)

const firstFarIdentity = 20000

// farNode is a node that exists only as objects. Its numbers start at 1.
type farNode int

func (n farNode) name() string { return fmt.Sprintf("far-%d", n) }

// addr returns the underlay address of the node. Each turn has another address.
func (n farNode) addr(turn int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, byte(18 + turn%2), byte(n >> 8), byte(n)})
}

// podRange returns the node's 256 pod addresses: the first is the router's, the second is probed, and pods start at the tenth.
func (n farNode) podRange() netip.Prefix {
	return netip.PrefixFrom(n.inner(0), 24)
}

func (n farNode) inner(last int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(128 + n>>8), byte(n), byte(last)})
}

// farNodeOf returns the node of an address in its pod range.
func farNodeOf(inner netip.Addr) farNode {
	b := inner.As4()
	return farNode(b[1]-128)<<8 | farNode(b[2])
}

// objects returns the objects that Kubernetes and the node's agent write for the node.
func (n farNode) objects(turn int) []runtime.Object {
	cidrs := []string{n.podRange().String()}
	host := n.addr(turn).String()
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name(), UID: n.uid(0), Labels: map[string]string{"kubernetes.io/hostname": n.name()}},
			Spec:   corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}, {Type: corev1.NodeHostName, Address: n.name()}}}},
		&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: n.name(), UID: n.uid(1)},
			Spec: ciliumv2.NodeSpec{Addresses: []ciliumv2.NodeAddress{{Type: string(corev1.NodeInternalIP), IP: host}, {Type: ciliumv2.CiliumInternalIP, IP: n.inner(1).String()}},
				Health: ciliumv2.AddressPair{IPv4: n.inner(2).String()}, IPAM: ciliumv2.NodeIPAM{PodCIDRs: cidrs}}},
	}
}

// pod returns the CiliumEndpoint of a pod as the node's agent writes it.
func (n farNode) pod(number int) *ciliumv2.CiliumEndpoint {
	name := fmt.Sprintf("app-%d-6d4cf56db6-%05d", int(n)%50, int(n)*farPodsOfNode+number)
	id := firstFarIdentity + (int(n)*farPodsOfNode+number)%farIdentities
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: farNamespace(id), Name: name, UID: n.uid(2 + number), Labels: map[string]string{ciliumv2.NodeLabel: n.name()}},
		Status: ciliumv2.EndpointStatus{ID: int64(number + 1), State: "ready", Identity: &ciliumv2.EndpointIdentity{ID: int64(id), Labels: []string{"k8s:app=" + strconv.Itoa(id)}},
			ExternalIDs: &ciliumv2.EndpointIdentifiers{PodNamespace: farNamespace(id), PodName: name, Pod: farNamespace(id) + "/" + name},
			Networking:  &ciliumv2.EndpointNetworking{Node: n.addr(0).String(), Addressing: []ciliumv2.AddressPair{{IPv4: n.podAddr(number).String()}}}},
	}
}

func (n farNode) podAddr(number int) netip.Addr { return n.inner(10 + number) }

func (n farNode) uid(object int) types.UID {
	return types.UID(fmt.Sprintf("5a1ef0de-%04x-4000-8000-%012x", object, int(n)))
}

func farNamespace(id int) string { return fmt.Sprintf("team-%d", id%100) }

// farIdentityObjects returns the identities of all far pods.
func farIdentityObjects() (all []runtime.Object) {
	for id := firstFarIdentity; id < firstFarIdentity+farIdentities; id++ {
		all = append(all, &ciliumv2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(id)}, SecurityLabels: map[string]string{"k8s:app": strconv.Itoa(id),
			"k8s:io.kubernetes.pod.namespace": farNamespace(id), "k8s:io.cilium.k8s.policy.cluster": "default"}})
	}
	return all
}
