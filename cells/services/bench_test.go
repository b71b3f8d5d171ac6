package services

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

const many = 50_000

// objects are a Service and its slice as an API server sends them.
func objects(i int, port int32) (*corev1.Service, *discoveryv1.EndpointSlice) {
	name, namespace := fmt.Sprintf("service-%05d", i), fmt.Sprintf("namespace-%d", i%100)
	uid := func(kind uint32) types.UID {
		return types.UID(fmt.Sprintf("%08x-6ee5-4f3b-8a61-0f7b%08x", kind, uint32(i)*2654435761))
	}
	made := metav1.NewTime(time.Unix(1_700_000_000+int64(i), 0))
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: uid(1), CreationTimestamp: made, Labels: map[string]string{"app.kubernetes.io/name": name}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app.kubernetes.io/name": name},
			ClusterIPs: []string{fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")}}},
	}
	node, zone, http, tcp, yes, no := fmt.Sprintf("node-%d", i%500), "eu-central-1a", "http", corev1.ProtocolTCP, true, false
	e := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-x7k2p", Namespace: namespace, UID: uid(2), CreationTimestamp: made, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Protocol: &tcp, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name + "-7d4b9c6f5d-abcde"}}},
	}
	return s, e
}

func (b *bench) kubernetes(from, to int, port int32) {
	txn := b.db.WriteTxn(b.svcs, b.slcs)
	defer txn.Commit()
	for i := from; i < to; i++ {
		s, e := objects(i, port)
		if i%10 == 9 {
			s.Labels["tier"] = "backend"
		}
		row, err := k8sobjects.FromServer(s, "one")
		if err != nil {
			b.t.Fatal(err)
		}
		slice, err := k8sobjects.FromServer(e, "one")
		if err != nil {
			b.t.Fatal(err)
		}
		b.insertObject(txn, row)
		b.insertObject(txn, slice)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processor is the time that this process has had on all CPUs: on a busy machine it says more than the clock.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkServices measures many services with one backend each: heap with the rows of Kubernetes and without, the first computation,
// and one change from its row in k8s-endpointslices to that in frontends.
func BenchmarkServices(b *testing.B) {
	for b.Loop() {
		w := newBench(b, DefaultConfig, &fakeIDs{})
		w.step()
		began := heap()
		w.kubernetes(0, many, 8080)
		read := heap()
		w.state(sources.Synced)
		begin, cpu := time.Now(), processor(b)
		w.step()
		b.ReportMetric(time.Since(begin).Seconds(), "s-first")
		b.ReportMetric((processor(b) - cpu).Seconds(), "cpu-s-first")
		done := heap()
		b.ReportMetric(float64(read-began)/many, "heap-B/kubernetes")
		b.ReportMetric(float64(done-began)/many, "heap-B/service")
		var took []time.Duration
		for i := range 1000 {
			at := i * 7919 % many
			w.kubernetes(at, at+1, 9090)
			begin := time.Now()
			w.step()
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2].Seconds()*1e6, "us-change-p50")
		b.ReportMetric(took[len(took)*99/100].Seconds()*1e6, "us-change-p99")
		if n := w.c.Frontends.NumObjects(w.db.ReadTxn()); n != many {
			b.Fatalf("%d frontends", n)
		}
		runtime.KeepAlive(w)
	}
}
