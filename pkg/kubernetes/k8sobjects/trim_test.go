package k8sobjects

import (
	"encoding/json"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"unique"
	"unsafe"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestInternRow_SharesTextsLikeFromServer reads a Service and a slice from an API server and from a copy on disk. Rows from disk stay when they equal those of the
// API server, so they must not take more memory.
func TestInternRow_SharesTextsLikeFromServer(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"app": "web"}
	port, name, node, zone, tcp := int32(8080), "http", "node-1", "zone-1", corev1.ProtocolTCP
	var texts []unique.Handle[string] // the shared copy of a text is forgotten at a garbage collection if no handle is left
	for _, text := range []string{"shop", "NodePort", "IPv4", name, "80", string(tcp), node, zone} {
		texts = append(texts, unique.Make(text))
	}
	row, err := FromServer(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: labels},
		Spec: corev1.ServiceSpec{Selector: labels, Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: name, Port: 80}}}}, "")
	require.NoError(t, err)
	service := row.(*k8s.Service)
	row, err = FromServer(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node, Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: node}}}}}}, "")
	require.NoError(t, err)
	slice := row.(*k8s.EndpointSlice)
	service2, slice2 := &k8s.Service{}, &k8s.EndpointSlice{}
	fromDisk(t, service, service2)
	fromDisk(t, slice, slice2)
	require.True(t, service2.Equal(service))
	require.True(t, slice2.Equal(slice))

	same := func(a, b string) {
		t.Helper()
		require.Equal(t, a, b)
		require.Same(t, unsafe.StringData(a), unsafe.StringData(b))
	}
	for _, s := range []*k8s.Service{service, service2} {
		same(s.Labelled, s.Selects)
	}
	for _, s := range []*k8s.EndpointSlice{slice, slice2} {
		same(s.Name[:len(s.Service)], s.Service)
	}
	same(service.Namespace, service2.Namespace)
	same(service.Namespace, slice2.Namespace)
	same(service.Type, service2.Type)
	same(slice.AddressType, slice2.AddressType)
	same(service.Ports[0].Name, service2.Ports[0].Name)
	same(service.Ports[0].TargetPort, service2.Ports[0].TargetPort)
	same(slice.Ports[0].Name, slice2.Ports[0].Name)
	same(slice.Ports[0].Protocol, slice2.Ports[0].Protocol)
	a, b := slice.Endpoints[0], slice2.Endpoints[0]
	same(a.NodeName, b.NodeName)
	same(a.Zone, b.Zone)
	same(a.ForZones[0], b.ForZones[0])
	same(a.ForNodes[0], b.ForNodes[0])
	runtime.KeepAlive(texts)
}

// fromDisk reads a row as from a copy on disk.
func fromDisk(t *testing.T, row, into Row) {
	t.Helper()
	text, err := json.Marshal(row)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
	InternRow(into)
}

func TestInternRow_NoSpareCapacity(t *testing.T) {
	t.Parallel()
	var slice k8s.EndpointSlice
	var service k8s.Service
	for text, row := range map[string]Row{
		`{"namespace":"n","name":"a","addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addrs":["10.0.0.1"]}]}`: &slice,
		`{"namespace":"n","name":"a","type":"ClusterIP","clusterIPs":["10.1.0.1"],"ports":[{"port":80}]}`:              &service,
	} {
		if err := json.Unmarshal([]byte(text), row); err != nil {
			t.Fatal(err)
		}
		InternRow(row)
	}
	got := []int{cap(slice.Ports), cap(slice.Endpoints), cap(slice.Endpoints[0].Addrs), cap(service.ClusterIPs), cap(service.Ports)}
	if want := []int{1, 1, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("capacities %v, want %v", got, want)
	}
	if want := netip.MustParseAddr("10.0.0.1"); slice.Endpoints[0].Addrs[0] != want || slice.Ports[0].Port != 80 {
		t.Errorf("the row changed: %+v", slice)
	}
}
