// Package clusterload writes the objects of a large cluster directly into an API server: nodes without a kubelet, pods that have only a CiliumEndpoint, policies,
// and Services with one endpoint each. An agent cannot distinguish them from real ones.
package clusterload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/test/kube"
)

var (
	ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}
	// CiliumEndpoints is the resource that represents the pods of other nodes.
	CiliumEndpoints  = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints"}
	ciliumIdentities = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumidentities"}
)

// Label is on all objects of this package.
const Label = "waggle.test/load"

// Namespaces is the number of namespaces that the objects are spread over.
const Namespaces = 100

// Cluster configures the number of objects of each kind.
type Cluster struct {
	Nodes, Pods, Identities, Policies, Services int

	// LocalNamespace is a namespace of running pods. One policy in thirty is in this namespace and selects one pod by its label "app", "bench-NNN"; the
	// others are in namespaces of other nodes' pods.
	LocalNamespace string
	Writers        int // concurrent requests; 0 means 32
}

// clients are API clients without a rate limit.
type clients struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

func newClients(config *rest.Config) (c clients, err error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1
	if c.typed, err = kubernetes.NewForConfig(config); err != nil {
		return c, fmt.Errorf("make a client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return c, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

// Write creates all objects and skips existing ones. It stops at the first error.
func (c Cluster) Write(ctx context.Context, k *kube.Cluster) error {
	clients, err := newClients(k.Config())
	if err != nil {
		return err
	}
	typed, options := clients.typed, metav1.CreateOptions{}
	for _, step := range []struct {
		what  string
		count int
		one   func(ctx context.Context, i int) error
	}{
		{"Namespace", Namespaces, func(ctx context.Context, i int) error {
			_, err := typed.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}, options)
			return err
		}},
		{"Node", c.Nodes, func(ctx context.Context, i int) error {
			_, err := typed.CoreV1().Nodes().Create(ctx, node(i), options)
			return err
		}},
		{"CiliumNode", c.Nodes, func(ctx context.Context, i int) error {
			_, err := clients.dynamic.Resource(ciliumNodes).Create(ctx, ciliumNode(i), options)
			return err
		}},
		{"CiliumIdentity", c.Identities, func(ctx context.Context, i int) error {
			_, err := clients.dynamic.Resource(ciliumIdentities).Create(ctx, ciliumIdentity(i), options)
			return err
		}},
		{"CiliumEndpoint", c.Pods, func(ctx context.Context, i int) error {
			return c.createEndpoint(ctx, clients, i, 0)
		}},
		{"NetworkPolicy", c.Policies, func(ctx context.Context, i int) error {
			policy := c.networkPolicy(i)
			_, err := typed.NetworkingV1().NetworkPolicies(policy.Namespace).Create(ctx, policy, options)
			return err
		}},
		{"Service", c.Services, func(ctx context.Context, i int) error {
			return putService(ctx, k, i)
		}},
		{"EndpointSlice", c.Services, func(ctx context.Context, i int) error {
			slice := c.slice(i, 0)
			_, err := typed.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, options)
			return err
		}},
	} {
		if err := c.each(ctx, step.count, step.one); err != nil {
			return fmt.Errorf("create %s: %w", step.what, err)
		}
	}
	return nil
}

func (c Cluster) createEndpoint(ctx context.Context, clients clients, pod, life int) error {
	object := c.ciliumEndpoint(pod, life)
	_, err := clients.dynamic.Resource(CiliumEndpoints).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
	return err
}

// each calls one for 0 to count-1 with several concurrent calls.
func (c Cluster) each(ctx context.Context, count int, one func(context.Context, int) error) error {
	writers := c.Writers
	if writers == 0 {
		writers = 32
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				if err := one(ctx, i); err != nil && !apierrors.IsAlreadyExists(err) {
					cancel(fmt.Errorf("number %d: %w", i, err))
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func name(kind string, i int) string { return fmt.Sprintf("load-%s-%05d", kind, i) }

// nodeIP returns the i-th address of 172.16.0.0/12.
func nodeIP(i int) string {
	return netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)}).String()
}

// podCIDR returns the i-th /24 of 10.128.0.0/9.
func podCIDR(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0}), 24)
}

func meta(kind string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name(kind, i), Labels: map[string]string{Label: "true"}}
}

func node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: meta("node", i)}
	n.Labels["kubernetes.io/hostname"], n.Labels["topology.kubernetes.io/zone"] = n.Name, fmt.Sprintf("zone-%d", i%3)
	n.Annotations = map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"node.alpha.kubernetes.io/ttl": "300"}
	n.Spec.PodCIDR = podCIDR(i).String()
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	n.Spec.Taints = []corev1.Taint{{Key: Label, Effect: corev1.TaintEffectNoSchedule}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP(i)},
		{Type: corev1.NodeHostName, Address: n.Name}}
	return n
}

func untyped(kind, named string, fields map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: fields}
	o.SetAPIVersion("cilium.io/v2")
	o.SetKind(kind)
	o.SetName(named)
	o.SetLabels(map[string]string{Label: "true"})
	return o
}

func ciliumNode(i int) *unstructured.Unstructured {
	prefix := podCIDR(i)
	return untyped("CiliumNode", name("node", i), map[string]any{"spec": map[string]any{
		"addresses": []any{map[string]any{"type": "InternalIP", "ip": nodeIP(i)},
			map[string]any{"type": "CiliumInternalIP", "ip": prefix.Addr().Next().String()}},
		"ipam": map[string]any{"podCIDRs": []any{prefix.String()}}}})
}

func ciliumIdentity(i int) *unstructured.Unstructured {
	return untyped("CiliumIdentity", fmt.Sprint(identityID(i)), map[string]any{"security-labels": identityLabels(i)})
}

// identityID returns numbers above the low ones, which other tests may use.
func identityID(i int) int64 { return int64(20000 + i) }

func namespace(i int) string { return fmt.Sprintf("load-%02d", i%Namespaces) }

func app(identity int) string { return fmt.Sprintf("load-%d", identity) }

func identityLabels(i int) map[string]any {
	return map[string]any{"k8s:app": app(i), "k8s:io.kubernetes.pod.namespace": namespace(i),
		"k8s:io.cilium.k8s.policy.serviceaccount": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}
}

// place returns the node of a pod and the pod's address in its life-th incarnation. Successive incarnations have different addresses.
func (c Cluster) place(pod, life int) (node int, addr netip.Addr) {
	nodes := max(1, c.Nodes)
	node = pod % nodes
	base := podCIDR(node).Addr().As4()
	base[3] = byte(2 + pod/nodes + 100*(life%2))
	return node, netip.AddrFrom4(base)
}

// CiliumEndpointOf returns the namespace and the name of the CiliumEndpoint of a pod by number.
func (c Cluster) CiliumEndpointOf(pod int) (in, named string) {
	return namespace(c.identityOf(pod)), name("pod", pod)
}

func (c Cluster) identityOf(pod int) int { return pod % max(1, c.Identities) }

func (c Cluster) ciliumEndpoint(i, life int) *unstructured.Unstructured {
	on, addr := c.place(i, life)
	who := c.identityOf(i)
	labels := []any{}
	for key, value := range identityLabels(who) {
		labels = append(labels, fmt.Sprintf("%s=%s", key, value))
	}
	o := untyped("CiliumEndpoint", name("pod", i), map[string]any{"status": map[string]any{
		"id": int64(i%4000 + 1), "state": "ready",
		"identity":   map[string]any{"id": identityID(who), "labels": labels},
		"networking": map[string]any{"node": nodeIP(on), "addressing": []any{map[string]any{"ipv4": addr.String()}}},
		"encryption": map[string]any{},
		"external-identifiers": map[string]any{"k8s-namespace": namespace(who), "k8s-pod-name": name("pod", i),
			"pod-name": namespace(who) + "/" + name("pod", i)}}})
	o.SetNamespace(namespace(who))
	return o
}

// networkPolicy allows two applications of all namespaces, one of its own namespace and a range outside the cluster.
func (c Cluster) networkPolicy(i int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: meta("policy", i)}
	p.Namespace = namespace(i)
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app(i)}
	if i%30 == 0 && c.LocalNamespace != "" {
		p.Namespace = c.LocalNamespace
		p.Spec.PodSelector.MatchLabels["app"] = fmt.Sprintf("bench-%03d", i/30)
	}
	port := intstr.FromInt32(int32(1024 + i))
	pods := func(identity int, namespaces *metav1.LabelSelector) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: namespaces,
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app(identity % max(1, c.Identities))}}}
	}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
		From: []networkingv1.NetworkPolicyPeer{pods(i, &metav1.LabelSelector{}), pods(7*i+1, &metav1.LabelSelector{}), pods(i+Namespaces, nil),
			{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0}), 24).String()}}}}}
	return p
}

// service has an explicit address that differs from the addresses that the API server allocated before.
func service(i int) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta("service", i)}
	s.Namespace = namespace(i)
	s.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(16 + i>>8), byte(i)}).String()
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	s.Spec.Type, s.Spec.SessionAffinity, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeClusterIP, corev1.ServiceAffinityNone, &cluster
	s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &single, []corev1.IPFamily{corev1.IPv4Protocol}
	return s
}

// putService writes a Service directly into etcd: the API server records each Service address with an internal client that is limited to a few dozen requests
// a second.
func putService(ctx context.Context, k *kube.Cluster, i int) error {
	s := service(i)
	s.UID, s.CreationTimestamp = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)), metav1.Now()
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte("/registry/services/specs/" + s.Namespace + "/" + s.Name), "value": value})
	if err != nil {
		return err
	}
	var answer any
	return k.Etcd(ctx, "/v3/kv/put", string(body), &answer)
}

func (c Cluster) slice(i, life int) *discoveryv1.EndpointSlice {
	on, addr := c.place(i%max(1, c.Pods), life)
	named, port, nodeName, ready := "http", int32(8080), name("node", on), true
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta("service", i), AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace = namespace(i)
	s.Labels[discoveryv1.LabelServiceName] = s.Name
	s.Ports = []discoveryv1.EndpointPort{{Name: &named, Port: &port}}
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr.String()}, NodeName: &nodeName,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}
	return s
}
