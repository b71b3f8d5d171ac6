package k8sobjects_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// remotePod returns a CiliumEndpoint with pairs of addresses.
func remotePod(name string, pairs ...ciliumv2.AddressPair) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "5c0e6a57-6ee5-4f3b-8a61-0f7b00000001", Labels: map[string]string{ciliumv2.NodeLabel: "two", "a": "b"},
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)), OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: "pod-uid"}}},
		Status: ciliumv2.EndpointStatus{ID: 17, Identity: &ciliumv2.EndpointIdentity{ID: 40000, Labels: []string{"k8s:app=web"}}, ServiceAccount: "web",
			Networking: &ciliumv2.EndpointNetworking{Node: "192.0.2.2", Addressing: pairs},
			NamedPorts: []ciliumv2.NamedPort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "dns", Port: 53, Protocol: "UDP"}}},
	}
}

// TestCiliumEndpointSlice_MakesTheRowsOfCiliumEndpoints: an agent that reads slices has the same rows as one that reads CiliumEndpoints.
func TestCiliumEndpointSlice_MakesTheRowsOfCiliumEndpoints(t *testing.T) {
	t.Parallel()
	pair := func(v4, v6 string) ciliumv2.AddressPair { return ciliumv2.AddressPair{IPv4: v4, IPv6: v6} }
	cases := map[string]*ciliumv2.CiliumEndpoint{
		"both families":     remotePod("a", pair("10.0.0.1", "fd00::1")),
		"two pairs":         remotePod("b", pair("10.0.0.1", ""), pair("", "fd00::1")),
		"IPv6 first":        remotePod("c", pair("", "fd00::1"), pair("10.0.0.1", "")),
		"several addresses": remotePod("d", pair("10.0.0.1", "fd00::1"), pair("10.0.0.2", "fd00::2"), pair("", "fd00::3")),
	}
	nothing := remotePod("e", pair("10.0.0.1", ""))
	nothing.Status.Identity, nothing.Status.NamedPorts, nothing.Labels, nothing.OwnerReferences, nothing.Status.Networking.Node = nil, nil, nil, nil, ""
	cases["little is known"] = nothing
	for name, o := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := json.Marshal(o)
			require.NoError(t, err)
			want, err := k8sobjects.FromServer(o, "one")
			require.NoError(t, err)
			var same ciliumv2.CiliumEndpoint
			require.NoError(t, json.Unmarshal(text, &same))
			sliced, err := k8sobjects.SlicedEndpoint(&same)
			require.NoError(t, err)
			slice := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", ResourceVersion: "7"}, PodNamespace: "shop",
				Endpoints: []ciliumv2.SlicedEndpoint{sliced.Entry()}}
			text, err = json.Marshal(slice)
			require.NoError(t, err)
			var sent ciliumv2.CiliumEndpointSlice
			require.NoError(t, json.Unmarshal(text, &sent))
			row, err := k8sobjects.FromServer(&sent, "one")
			require.NoError(t, err)
			got := row.(*cilium.EndpointSlice)
			require.EqualValues(t, 7, got.Version)
			require.Len(t, got.Endpoints, 1)
			require.True(t, got.Endpoints[0].Equal(want.(*cilium.Endpoint)), "got %+v, want %+v", got.Endpoints[0].Fields(), want.(*cilium.Endpoint).Fields())
		})
	}
	sliced, err := k8sobjects.SlicedEndpoint(remotePod("a", pair("10.0.0.1", "")))
	require.NoError(t, err)
	require.Equal(t, "pod-uid web", sliced.PodUID+" "+sliced.ServiceAccount)
}

func TestSlicedEndpoint_SkipsOrRejects(t *testing.T) {
	t.Parallel()
	sliced, err := k8sobjects.SlicedEndpoint(remotePod("a"))
	require.NoError(t, err)
	require.Nil(t, sliced, "an endpoint without addresses")
	var many []ciliumv2.AddressPair
	for i := range 9 {
		many = append(many, ciliumv2.AddressPair{IPv4: fmt.Sprintf("10.0.0.%d", i)})
	}
	_, err = k8sobjects.SlicedEndpoint(remotePod("a", many...))
	require.ErrorContains(t, err, "addresses")
	_, err = k8sobjects.SlicedEndpoint(remotePod("a", ciliumv2.AddressPair{IPv4: "10.0.0.256"}))
	require.ErrorContains(t, err, "10.0.0.256")
	for key, fits := range map[int]bool{-1: false, 0: true, 255: true, 256: false} { // the API server rejects a slice with another key
		o := remotePod("a", ciliumv2.AddressPair{IPv4: "10.0.0.1"})
		o.Status.Encryption.Key = key
		_, err = k8sobjects.SlicedEndpoint(o)
		require.Equal(t, fits, err == nil, "key %d: %v", key, err)
	}
}

// TestCiliumEndpoint_ManyAddresses_IsRejected: agents that read CiliumEndpoints reject an object with as many addresses as fit in it, also within a slice.
func TestCiliumEndpoint_ManyAddresses_IsRejected(t *testing.T) {
	t.Parallel()
	for n, accepted := range map[int]bool{8: true, 9: false, 60_000: false} {
		var pairs []ciliumv2.AddressPair
		for i := range n {
			pairs = append(pairs, ciliumv2.AddressPair{IPv4: fmt.Sprintf("10.0.%d.%d", i/256, i%256)})
		}
		o := remotePod("a", pairs...)
		slice := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, PodNamespace: "shop", Endpoints: []ciliumv2.SlicedEndpoint{
			{Name: "a", Networking: o.Status.Networking, Origin: &ciliumv2.SliceOrigin{UID: "u"}}}}
		row, err := k8sobjects.FromServer(slice, "one")
		if accepted {
			require.NoError(t, err)
			require.Equal(t, n, row.(*cilium.EndpointSlice).Endpoints[0].NumAddrs())
		} else {
			require.ErrorContains(t, err, "more than 8 addresses")
			require.Empty(t, row.(*cilium.EndpointSlice).Endpoints)
		}
		row, err = k8sobjects.FromServer(o, "one")
		if accepted {
			require.NoError(t, err)
			require.Equal(t, n, row.(*cilium.Endpoint).NumAddrs())
		} else {
			require.ErrorContains(t, err, "more than 8 addresses")
		}
	}
}

// TestCiliumEndpointSlice_Rejects: a slice without the field waggle, which an API server with Cilium's definition drops, removes no rows of the
// previous state.
func TestCiliumEndpointSlice_Rejects(t *testing.T) {
	t.Parallel()
	entry := func(name string) ciliumv2.SlicedEndpoint {
		return ciliumv2.SlicedEndpoint{Name: name, Networking: &ciliumv2.EndpointNetworking{Addressing: []ciliumv2.AddressPair{{IPv4: "10.0.0.1"}}},
			Origin: &ciliumv2.SliceOrigin{UID: "u-" + name}}
	}
	read := func(entries ...ciliumv2.SlicedEndpoint) (k8sobjects.Row, error) {
		return k8sobjects.FromServer(&ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, PodNamespace: "shop", Endpoints: entries}, "one")
	}
	lost := entry("b")
	lost.Origin = nil
	row, err := read(entry("a"), lost)
	partly := k8sobjects.Partly("")
	require.Nil(t, row)
	require.ErrorContains(t, err, "endpoints[1].waggle.uid")
	require.False(t, errors.As(err, &partly))

	wrong := entry("c")
	wrong.Networking.Addressing[0].IPv4 = "x"
	row, err = read(wrong, entry("b"), entry("a"), entry("x/y"), entry("b"))
	requireParts(t, err, "endpoints[0]")
	requireParts(t, err, "endpoints[3]")
	slice := row.(*cilium.EndpointSlice)
	require.Len(t, slice.Endpoints, 2)
	require.Equal(t, "u-b", slice.Find("shop/b").UID())
	require.NotNil(t, slice.Find("shop/a"))
	require.Nil(t, slice.Find("shop/c"))
}

// BenchmarkCiliumEndpointSlice measures the cost of a change of one pod for an agent that reads slices: it decodes the whole slice.
func BenchmarkCiliumEndpointSlice(b *testing.B) {
	o := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-a", ResourceVersion: "7"}, PodNamespace: "shop"}
	for i := range 100 {
		sliced, err := k8sobjects.SlicedEndpoint(remotePod(fmt.Sprintf("web-7d4b9c6f5d-%05d", i), ciliumv2.AddressPair{IPv4: fmt.Sprintf("10.0.0.%d", i), IPv6: fmt.Sprintf("fd00::%d", i)}))
		require.NoError(b, err)
		o.Endpoints = append(o.Endpoints, sliced.Entry())
	}
	text, err := json.Marshal(o)
	require.NoError(b, err)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var decoded ciliumv2.CiliumEndpointSlice
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &decoded); err != nil {
			b.Fatal(err)
		}
		if _, err := k8sobjects.FromServer(&decoded, "one"); err != nil {
			b.Fatal(err)
		}
	}
}
