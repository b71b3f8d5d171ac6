package ciliumv2_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
)

// endpointText is a CiliumEndpoint as an API server writes it.
const endpointText = `{"apiVersion":"cilium.io/v2","kind":"CiliumEndpoint","metadata":{"creationTimestamp":"2026-11-26T03:00:00Z","generation":3,` +
	`"labels":{"app":"web","waggle.io/node":"two"},"managedFields":[{"manager":"waggle-agent","operation":"Apply","fieldsV1":{"f:status":{"f:id":{}}}}],` +
	`"name":"web-7d4b9c6f5d-00001","namespace":"shop","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"u"}],"resourceVersion":"123",` +
	`"uid":"5c0e6a57-6ee5-4f3b-8a61-0f7b00000001"},"status":{"encryption":{},"external-identifiers":{"cni-attachment-id":"c:eth0"},"id":17,` +
	`"identity":{"id":40000,"labels":["k8s:app=web"]},"named-ports":[{"name":"http","port":80,"protocol":"TCP"},{"name":"dns","port":53,"protocol":"UDP"}],` +
	`"networking":{"addressing":[{"ipv4":"10.51.0.1","ipv6":"fd00:51::1"}],"node":"192.0.2.2"},"state":"ready"}}`

// variants returns the text with members that are malformed, missing, duplicate or of another kind.
func variants() []string {
	return changed(endpointText, []change{
		{`"waggle.io/node":"two"`, `"waggle.io/node":"one"`}, {`"waggle.io/node":"two"`, `"waggle.io/node":null`}, {`"web-7d4b`, `"WEB-7d4b`},
		{`"id":40000`, `"id":-1`}, {`"id":40000`, `"id":4e4`}, {`"id":40000`, `"id":40000,"id":5`}, {`"identity":`, `"identity":{"id":7},"identity":`},
		{`"port":80`, `"port":80000`}, {`"10.51.0.1"`, `"10.51.0.\u0031"`}, {`"10.51.0.1"`, `"10.51.0.1.2"`}, {`"10.51.0.1"`, `"::ffff:10.51.0.1"`},
		{`"networking":`, `"networking":null,"networking":`}, {`"networking":`, `"Networking":`}, {`"name":"http"`, `"NAME":"http"`},
		{`2026-11-26T03:00:00Z`, `yesterday`}, {`"2026-11-26T03:00:00Z"`, `null`}, {`2026-11-26T03:00:00Z`, `2026-11-26T03:00:00+01:00`},
		{`"generation":3`, `"generation":-3`}, {`"state":"ready"`, `"state":"r\u00e9ady"`}, {`"addressing":[`, `"addressing":[null,`},
		{`"addressing":[`, `"addressing":[],"addressing":[`}, {`"status":`, `"status":{},"status":`}, {`"metadata":`, `"metadata":{"name":"x"},"metadata":`},
		{`"node":"192.0.2.2"`, `"node":"nowhere"`}, {`}}`, `}`}, {`"name":"web-7d4b9c6f5d-00001",`, ``}, {`"protocol":"TCP"`, `"protocol":"TCP\n"`},
	})
}

// change replaces the first occurrence of a part of a text.
type change struct{ from, to string }

// changed returns the text, and the text with each change alone.
func changed(text string, changes []change) []string {
	out := []string{text}
	for _, c := range changes {
		if other := strings.Replace(text, c.from, c.to, 1); other != text {
			out = append(out, other)
		}
	}
	return out
}

// object is an object with metadata.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

func readEndpoint(r *jsonscan.Reader) *ciliumv2.CiliumEndpoint {
	return ciliumv2.ReadEndpoint(r, "one")
}

// rows returns the rows that the node "one" creates from a text with read and with the decoder of Kubernetes.
func rows[T any, O object[T]](t *testing.T, text string, read func(*jsonscan.Reader) O) (known bool, quick, slow any) {
	t.Helper()
	row := func(o O) any {
		row, err := k8sobjects.FromServer(o, "one")
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "["):
			return "several errors, in random order"
		case err != nil:
			return err.Error()
		}
		return row
	}
	o := O(new(T))
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), o); err == nil {
		slow = row(o)
	}
	r := jsonscan.NewReader([]byte(text))
	if p := read(r); r.Done() {
		if o.GetResourceVersion() != p.GetResourceVersion() && slow != nil {
			t.Errorf("%s: version %q, want %q", text, p.GetResourceVersion(), o.GetResourceVersion())
		}
		return true, row(p), slow
	}
	return false, nil, slow
}

// compare reports whether read reads a text, and checks that the row is then the one of the decoder of Kubernetes.
func compare[T any, O object[T]](t *testing.T, text string, read func(*jsonscan.Reader) O) bool {
	t.Helper()
	known, quick, slow := rows(t, text, read)
	if known && slow != nil && !reflect.DeepEqual(quick, slow) {
		t.Errorf("%s:\n%v, want\n%v", text, quick, slow)
	}
	if known && !json.Valid([]byte(text)) {
		t.Errorf("%s was read and is not JSON", text)
	}
	return known
}

func TestReadEndpoint_MakesTheSameRow(t *testing.T) {
	t.Parallel()
	if !compare(t, endpointText, readEndpoint) {
		t.Error("an object as an API server writes it is left to others")
	}
	left := 0
	for _, text := range variants() {
		if !compare(t, text, readEndpoint) {
			left++
		}
	}
	if left < 10 {
		t.Errorf("%d variants are left to others", left)
	}
}

// The row of an object that this node wrote has a digest of all its fields, so ReadEndpoint must reject the object.
func TestReadEndpoint_RejectsOwnObjects(t *testing.T) {
	t.Parallel()
	if compare(t, strings.Replace(endpointText, `"waggle.io/node":"two"`, `"waggle.io/node":"one"`, 1), readEndpoint) {
		t.Error("it was read")
	}
}

func FuzzReadEndpoint(f *testing.F) {
	for _, text := range variants() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { compare(t, string(data), readEndpoint) })
}

func BenchmarkReadEndpoint(b *testing.B) {
	b.SetBytes(int64(len(endpointText)))
	b.ReportAllocs()
	for b.Loop() {
		r := jsonscan.NewReader([]byte(endpointText))
		if ciliumv2.ReadEndpoint(r, "one"); !r.Done() {
			b.Fatal("not read")
		}
	}
}

func BenchmarkUnmarshalEndpoint(b *testing.B) {
	b.SetBytes(int64(len(endpointText)))
	b.ReportAllocs()
	for b.Loop() {
		var o ciliumv2.CiliumEndpoint
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(endpointText), &o); err != nil {
			b.Fatal(err)
		}
	}
}
