package k8sobjects_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// TestFromServer_EndpointNamesItsNode: of the labels and annotations of a CiliumEndpoint, the row needs the node that wrote it. A reader that validates
// claims only by the address of a node would accept a node that names another node's address.
func TestFromServer_EndpointNamesItsNode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"by the label of an agent", map[string]string{ciliumv2.NodeLabel: "two", "app": "web"}, "two"},
		{"without the label", map[string]string{"app": "web"}, ""},
		{"without labels", nil, ""},
	} {
		o := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "1", Labels: test.labels,
			Annotations: map[string]string{"note": "long"}}}
		row, err := k8sobjects.FromServer(o, "one")
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if ep, ok := row.(*cilium.Endpoint); !ok || ep.Host() != test.want {
			t.Errorf("%s: the row is %+v, want node %q", test.name, row, test.want)
		}
		if len(o.Labels) > 1 || len(o.Annotations) > 0 {
			t.Errorf("%s: the object keeps labels %v and annotations %v", test.name, o.Labels, o.Annotations)
		}
	}
}

// A nil object stands for one that the conversion does not expect.
func TestFromServer_PanicRejectsTheObject(t *testing.T) {
	t.Parallel()
	row, err := k8sobjects.FromServer((*ciliumv2.CiliumEndpoint)(nil), "one")
	if row != nil || err == nil {
		t.Fatalf("row %v, error %v", row, err)
	}
	for _, want := range []string{"cannot read the object", "nil pointer", "k8sobjects.FromServer:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
}
