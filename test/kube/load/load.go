// Package load writes the objects of a large cluster straight into an API server: nodes without a kubelet, and pods that
// only their CiliumEndpoints tell of. The agent cannot see the difference.
package load

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	ciliumNodes      = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}
	ciliumEndpoints  = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints"}
	ciliumIdentities = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumidentities"}
)

// Label marks all objects of this package.
const Label = "waggle.test/load"

// Cluster says how much to write.
type Cluster struct {
	Nodes, Pods, Identities int
	Namespace               string // of the CiliumEndpoints; it must exist
	Writers                 int    // requests in flight; 0 means 32
}

// Write creates all objects. Objects that exist already are left alone. It stops at the first error.
func (c Cluster) Write(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	for _, step := range []struct {
		what  string
		count int
		one   func(ctx context.Context, i int) error
	}{
		{"node", c.Nodes, func(ctx context.Context, i int) error {
			_, err := typed.CoreV1().Nodes().Create(ctx, node(i), metav1.CreateOptions{})
			return err
		}},
		{"CiliumNode", c.Nodes, func(ctx context.Context, i int) error {
			_, err := untyped.Resource(ciliumNodes).Create(ctx, ciliumNode(i), metav1.CreateOptions{})
			return err
		}},
		{"CiliumIdentity", c.Identities, func(ctx context.Context, i int) error {
			_, err := untyped.Resource(ciliumIdentities).Create(ctx, ciliumIdentity(i), metav1.CreateOptions{})
			return err
		}},
		{"CiliumEndpoint", c.Pods, func(ctx context.Context, i int) error {
			object := ciliumEndpoint(i, c)
			_, err := untyped.Resource(ciliumEndpoints).Namespace(c.Namespace).Create(ctx, object, metav1.CreateOptions{})
			return err
		}},
	} {
		if err := c.each(ctx, step.count, step.one); err != nil {
			return fmt.Errorf("create %s: %w", step.what, err)
		}
	}
	return nil
}

// each calls one for 0 to count-1, several at once.
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

// nodeIP counts through 172.16.0.0/12.
func nodeIP(i int) string {
	return netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)}).String()
}

// podCIDR counts through 10.128.0.0/9 in steps of a /24.
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

// identityID keeps clear of the low numbers, which tests of other things may meet.
func identityID(i int) int64 { return int64(20000 + i) }

func identityLabels(i int) map[string]any {
	return map[string]any{"k8s:app": fmt.Sprintf("load-%d", i), "k8s:io.kubernetes.pod.namespace": "load",
		"k8s:io.cilium.k8s.policy.serviceaccount": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}
}

func ciliumEndpoint(i int, c Cluster) *unstructured.Unstructured {
	on := i % max(1, c.Nodes)
	addr := podCIDR(on).Addr()
	for range 2 + i/max(1, c.Nodes) {
		addr = addr.Next()
	}
	labels := []any{}
	who := i % max(1, c.Identities)
	for key, value := range identityLabels(who) {
		labels = append(labels, fmt.Sprintf("%s=%s", key, value))
	}
	return untyped("CiliumEndpoint", name("pod", i), map[string]any{"status": map[string]any{
		"id": int64(i%4000 + 1), "state": "ready",
		"identity":   map[string]any{"id": identityID(who), "labels": labels},
		"networking": map[string]any{"node": nodeIP(on), "addressing": []any{map[string]any{"ipv4": addr.String()}}},
		"encryption": map[string]any{},
		"external-identifiers": map[string]any{"k8s-namespace": c.Namespace, "k8s-pod-name": name("pod", i),
			"pod-name": c.Namespace + "/" + name("pod", i)}}})
}
