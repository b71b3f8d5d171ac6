package reflectors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// reply is a transport whose responses have one type and body.
type reply struct {
	kind string
	body func() io.Reader
}

// RoundTrip implements http.RoundTripper.
func (r reply) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {r.kind}}, Body: io.NopCloser(r.body()),
		Request: request}, nil
}

// from returns a listWatch of a server that sends one reply. read may be nil.
func from(b *testing.B, resource kubeapi.Resource, read reader, r reply) *listWatch {
	config := &rest.Config{Host: "http://192.0.2.1", QPS: -1}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { return r })
	client, err := kubeapi.New(config, kubeapi.DefaultConnection)
	if err != nil {
		b.Fatal(err)
	}
	return &listWatch{ListWatch: client.ListWatch(resource, "", nil), converter: converter{nodeName: "one"}, servers: client.Servers, client: client, resource: resource, read: read,
		report: &report{set: newSet(b), health: newRecorder()}}
}

// endless repeats a text.
type endless struct {
	text []byte
	at   int
}

// Read implements io.Reader.
func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

// managed returns the record of the fields of an object, of a usual size.
func managed(fields int) []metav1.ManagedFieldsEntry {
	text := `{"f:metadata":{`
	for i := range fields {
		text += fmt.Sprintf(`"f:waggle.io/field-%d":{".":{}},`, i)
	}
	return []metav1.ManagedFieldsEntry{{Manager: "agent", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(text + `"f:name":{}}}`)}}
}

// wholeNode returns a Node with the fields that usual nodes have.
func wholeNode(i int) *corev1.Node {
	n := bigNode(i)
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	n.ResourceVersion = fmt.Sprint(1000 + i)
	n.ManagedFields = managed(100)
	for _, kind := range []corev1.NodeConditionType{"NetworkUnavailable", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse,
			LastHeartbeatTime: metav1.Unix(1_800_000_000, 0), LastTransitionTime: metav1.Unix(1_800_000_000, 0), Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory"})
	}
	return n
}

// wholeCiliumNode returns a CiliumNode as an agent writes it.
func wholeCiliumNode(i int) *ciliumv2.CiliumNode {
	return &ciliumv2.CiliumNode{TypeMeta: metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumNode"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250), ResourceVersion: fmt.Sprint(1000 + i),
			UID: "5c0e6a57-6ee5-4f3b-8a61-0f7b00000001", Generation: 2, CreationTimestamp: metav1.Unix(1_800_000_000, 0), ManagedFields: managed(30),
			Labels: map[string]string{"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "eu-central-1a", "node-role": "worker"},
			Annotations: map[string]string{"waggle.io/wrote": `{"annotations":"waggle.io/receives","labels":"kubernetes.io/os","spec.ipam.podCIDRs":"10.16.0.0/24"}`,
				"waggle.io/receives": "direct,vxlan:8472:ipv4", "waggle.io/machine": "5c0e6a576ee54f3b8a610f7b00000001", "waggle.io/pod-ranges": "10.16.0.0/24"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "one", UID: "5c0e6a57-6ee5-4f3b-8a61-0f7b00000002"}}},
		Spec: ciliumv2.NodeSpec{BootID: "5c0e6a57-6ee5-4f3b-8a61-0f7b00000003", IPAM: ciliumv2.NodeIPAM{PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 16+i/250, i%250)}},
			Health: ciliumv2.AddressPair{IPv4: fmt.Sprintf("10.%d.%d.2", 16+i/250, i%250)}, Addresses: []ciliumv2.NodeAddress{
				{Type: "InternalIP", IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}, {Type: "CiliumInternalIP", IP: fmt.Sprintf("10.%d.%d.1", 16+i/250, i%250)}}}}
}

// proto encodes an object as an API server does.
func proto(b *testing.B, o runtime.Object) []byte {
	var out bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(o, &out); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

func jsonText(b testing.TB, o any) []byte {
	text, err := json.Marshal(o)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

const protoType, jsonType = "application/vnd.kubernetes.protobuf", "application/json"

// BenchmarkNodeEvents measures one event of a watch from the bytes of the response to the row.
func BenchmarkNodeEvents(b *testing.B) {
	const count = 100
	frame := must[[]byte](b)((&metav1.WatchEvent{Type: string(watch.Modified), Object: runtime.RawExtension{Raw: proto(b, wholeNode(1))}}).Marshal())
	event := []byte(streamText(watch.Modified, string(jsonText(b, wholeCiliumNode(1)))))
	for name, c := range map[string]struct {
		resource kubeapi.Resource
		read     reader
		kind     string
		text     []byte
	}{
		"Node":                 {kubeapi.Nodes, nil, protoType + ";stream=watch", append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)},
		"CiliumNode":           {kubeapi.CiliumNodes, readNode, jsonType, event},
		"CiliumNode-client-go": {kubeapi.CiliumNodes, nil, jsonType, event},
	} {
		b.Run(name, func(b *testing.B) {
			lw := from(b, c.resource, c.read, reply{c.kind, func() io.Reader { return &endless{text: c.text} }})
			w, err := lw.watch(b.Context(), metav1.ListOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Stop()
			b.ReportAllocs()
			for b.Loop() {
				for range count {
					if e := <-w.ResultChan(); e.Type != watch.Modified || e.Object.(*object).row == nil {
						b.Fatal(e)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*count), "us/event")
			b.ReportMetric(float64(len(c.text)), "B/event")
		})
	}
}

// BenchmarkNodeLists measures one object of a list from the bytes of the response to the row.
func BenchmarkNodeLists(b *testing.B) {
	const count = 100
	many := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	manyCilium := &ciliumv2.CiliumNodeList{TypeMeta: metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumNodeList"}}
	for i := range count {
		many.Items = append(many.Items, *wholeNode(i))
		manyCilium.Items = append(manyCilium.Items, *wholeCiliumNode(i))
	}
	for name, c := range map[string]struct {
		resource kubeapi.Resource
		kind     string
		text     []byte
	}{
		"Node": {kubeapi.Nodes, protoType, proto(b, many)}, "CiliumNode": {kubeapi.CiliumNodes, jsonType, jsonText(b, manyCilium)},
	} {
		b.Run(name, func(b *testing.B) {
			lw := from(b, c.resource, nil, reply{c.kind, func() io.Reader { return bytes.NewReader(c.text) }})
			b.ReportAllocs()
			for b.Loop() {
				list, err := lw.list(b.Context(), metav1.ListOptions{})
				if err != nil || strings.Contains(fmt.Sprintf("%T", list), "NodeList") {
					b.Fatal(list, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*count), "us/object")
		})
	}
}

// BenchmarkHeartbeat measures the commit of an event that changes no row, in a database with as many tables as an agent has.
func BenchmarkHeartbeat(b *testing.B) {
	s := newStore(b)
	for i := range 120 {
		must[statedb.RWTable[int]](b)(statedb.NewTableAny(s.set.DB, fmt.Sprint("other-", i), func() []string { return nil }, func(int) []string { return nil },
			indexes.Unique("id", indexes.Int, func(i int) int { return i })))
	}
	row := must[k8sobjects.Row](b)(k8sobjects.FromServer(wholeNode(1), "one"))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o := &object{Object: noMetadata, name: row.Key(), version: fmt.Sprint(i + 1), row: row}
		if err := s.take(o, false); err != nil {
			b.Fatal(err)
		}
		if err := s.flush(); err != nil {
			b.Fatal(err)
		}
	}
}
