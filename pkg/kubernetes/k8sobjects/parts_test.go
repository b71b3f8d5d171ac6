package k8sobjects_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestNode_InvalidAddresses_AreSkipped: an API server accepts invalid addresses of a Node: names have any form, and kubelets of cloud
// providers have their own types. The rest of the Node is used.
func TestNode_InvalidAddresses_AreSkipped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address corev1.NodeAddress
		kept    bool
		reason  string // empty without an error
	}{
		{corev1.NodeAddress{Type: "Hostname", Address: "Worker-01"}, true, ""},
		{corev1.NodeAddress{Type: "Hostname", Address: "my_node"}, true, ""},
		{corev1.NodeAddress{Type: "InternalDNS", Address: "ip-1.ec2.internal."}, true, ""},
		{corev1.NodeAddress{Type: "ExternalDNS", Address: ""}, false, ""}, // a cloud provider's value for a missing name
		{corev1.NodeAddress{Type: "VIP", Address: "192.0.2.9"}, false, `status.addresses[1].type: Unsupported value: "VIP"`},
		{corev1.NodeAddress{Type: "InternalIP", Address: "010.0.0.2"}, false, `status.addresses[1].address: Invalid value: "010.0.0.2"`},
	} {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}, c.address}}}
		row, err := k8sobjects.FromServer(o, "one")
		requireParts(t, err, c.reason)
		want := []k8s.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}}
		if c.kept {
			want = append(want, k8s.NodeAddress{Type: string(c.address.Type), Address: c.address.Address})
		}
		node, ok := row.(*k8s.Node)
		require.True(t, ok, "%+v: %v", c.address, err)
		require.Equal(t, want, node.Addresses)
		require.Equal(t, "10.244.0.0/24", node.PodCIDR)
	}
}

// requireParts checks that the error names the unused part of an object, or that there is none.
func requireParts(t *testing.T, err error, reason string) {
	t.Helper()
	if reason == "" {
		require.NoError(t, err)
		return
	}
	var partly k8sobjects.Partly
	require.True(t, errors.As(err, &partly) && strings.Contains(err.Error(), reason), "%v", err)
}

// TestEndpointSlice_InvalidParts_AreSkipped: one invalid address or port takes no other endpoint out of service.
func TestEndpointSlice_InvalidParts_AreSkipped(t *testing.T) {
	t.Parallel()
	slice := func(addresses ...string) *discoveryv1.EndpointSlice {
		o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
			AddressType: "IPv4", Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}}}
		for _, address := range addresses {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
		return o
	}
	for _, bad := range []string{"010.0.0.2", "::ffff:10.0.0.2", "fd00::2"} {
		row, err := k8sobjects.FromServer(slice("10.0.0.1", bad, "10.0.0.3"), "one")
		requireParts(t, err, "endpoints[1].addresses[0]")
		s, ok := row.(*k8s.EndpointSlice)
		require.True(t, ok, "%s: %v", bad, err)
		var addrs []netip.Addr
		for _, e := range s.Endpoints {
			addrs = append(addrs, e.Addrs...)
		}
		require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3")}, addrs)
	}

	o := slice("10.0.0.1")
	o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: ptr.To("bad"), Port: ptr.To[int32](70000)})
	row, err := k8sobjects.FromServer(o, "one")
	requireParts(t, err, "ports[1].port")
	require.Len(t, row.(*k8s.EndpointSlice).Ports, 1)

	many := slice()
	for range 100 {
		many.Endpoints = append(many.Endpoints, discoveryv1.Endpoint{Addresses: []string{"x"}})
	}
	row, err = k8sobjects.FromServer(many, "one")
	requireParts(t, err, "and 97 more")
	require.Empty(t, row.(*k8s.EndpointSlice).Endpoints)
}

// TestCIDRGroup_InvalidEntries_AreSkipped: the API server rejects such entries, but it does not validate manifests.
func TestCIDRGroup_InvalidEntries_AreSkipped(t *testing.T) {
	t.Parallel()
	o := &ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: map[string]string{"role": "vpn"}}, Spec: ciliumv2.CIDRGroupSpec{
		ExternalCIDRs: []string{"10.1.2.3/16", "2001:db8::1", "10.0.0.0/33", "10.1.0.0/16", "::ffff:10.0.0.0/120", "fe80::1%eth0", "192.0.2.1"}}}
	row, err := k8sobjects.FromServer(o, "one")
	requireParts(t, err, "spec.externalCIDRs[2]")
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128")},
		row.(*cilium.CIDRGroup).CIDRs)
	require.Len(t, row.(*cilium.CIDRGroup).Problems, 3)
	require.Equal(t, "vpn", row.(*cilium.CIDRGroup).Labels["role"])
}

// TestEndpointSlice_HeadlessIsNotUsed: a slice with the label is for clients that resolve the Service by DNS; kube-proxy ignores it as well.
func TestEndpointSlice_HeadlessIsNotUsed(t *testing.T) {
	t.Parallel()
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s-1", Labels: map[string]string{
		discoveryv1.LabelServiceName: "s", corev1.IsHeadlessService: ""}}, AddressType: "IPv4",
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
	row, err := k8sobjects.FromServer(o, "one")
	var skip k8sobjects.NotForUs
	require.True(t, row == nil && errors.As(err, &skip), "%v, %v", row, err)
}

// TestEndpointSlice_ServingDefaultsToTrue: an endpoint without the condition serving serves, ready or not.
func TestEndpointSlice_ServingDefaultsToTrue(t *testing.T) {
	t.Parallel()
	yes, no := ptr.To(true), ptr.To(false)
	for _, c := range []struct {
		ready, serving *bool
		want           bool
	}{{nil, nil, true}, {no, nil, true}, {yes, nil, true}, {no, no, false}, {no, yes, true}} {
		row, err := k8sobjects.FromServer(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s-1"}, AddressType: "IPv4",
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: yes}}}}, "one")
		require.NoError(t, err)
		require.Equal(t, c.want, row.(*k8s.EndpointSlice).Endpoints[0].Serving, "%+v", c)
	}
}

// An agent of another node writes the key: a value outside of the range must not make the node unusable.
func TestCiliumNode_EncryptionKey_OutOfRangeIsNone(t *testing.T) {
	t.Parallel()
	for key, want := range map[int]uint8{0: 0, 1: 1, 255: 255, 256: 0, -1: 0} {
		row := k8sobjects.CiliumNode(&ciliumv2.CiliumNode{Spec: ciliumv2.NodeSpec{Encrypt: ciliumv2.NodeEncryption{Key: key},
			Addresses: []ciliumv2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.1"}}}})
		require.Equal(t, want, row.EncryptionKey, "key %d", key)
		require.Len(t, row.Addresses, 1, "key %d", key)
	}
}
