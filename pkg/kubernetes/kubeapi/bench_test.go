package kubeapi_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// BenchmarkGet measures one request over TLS, including the server.
func BenchmarkGet(b *testing.B) {
	s := kubetest.New(b, kubetest.WithTLS(kubetest.NewAuthority(b)))
	s.Put(node("one"))
	client := s.Client(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := client.Get(b.Context(), kubeapi.Nodes, "", "one", &corev1.Node{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWatch measures one event, from the change to the reader, among 1,000 objects.
func BenchmarkWatch(b *testing.B) {
	s := kubetest.New(b, kubetest.WithTLS(kubetest.NewAuthority(b)))
	for i := range 1000 {
		s.Put(node(fmt.Sprint(i)))
	}
	var list corev1.NodeList
	client := s.Client(b)
	if err := client.List(b.Context(), kubeapi.Nodes, "", metav1.ListOptions{}, &list); err != nil {
		b.Fatal(err)
	}
	w, err := client.Watch(b.Context(), kubeapi.Nodes, "", metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	b.ReportAllocs()
	for b.Loop() {
		s.Put(node("one"))
		<-w.ResultChan()
	}
}
