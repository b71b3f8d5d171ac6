package servicemaps

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/cells/service/servicecontroller"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// whole is the path of services from the rows of Kubernetes to real maps: the cell servicecontroller and this cell, as in the agent.
type whole struct {
	testing.TB
	wholeTables
	hive    *upstream.Hive
	log     *slog.Logger
	written chan int // number of entries of services in each write
}

type wholeTables struct {
	cell.In

	DB       *statedb.DB
	Services statedb.RWTable[*k8s.Service]
	Slices   statedb.RWTable[*k8s.EndpointSlice]
	Sources  statedb.RWTable[sources.Source]
	Rows     statedb.Table[*frontends.Frontend]
}

// notifyingMaps report the number of written entries.
type notifyingMaps struct {
	memoryMaps
	written chan int
}

func (m notifyingMaps) PutBatch(name string, keys, values any) (int, error) {
	n, err := m.memoryMaps.PutBatch(name, keys, values)
	if name == bpf.MapServices {
		m.written <- n
	}
	return n, err
}

// newWhole creates the cells without starting them. The tables are empty and complete. sizes are those of maps that do not have the default size.
func newWhole(b *testing.B, sizes map[string]uint32) *whole {
	w := &whole{TB: b, log: hivetest.Logger(b, hivetest.LogLevel(slog.LevelWarn)), written: make(chan int, 1000)}
	maps := notifyingMaps{newMemoryMaps(b, sizes), w.written}
	w.hive = newWholeHive(maps, cell.Invoke(func(t wholeTables) { w.wholeTables = t }))
	if err := w.hive.Populate(w.log); err != nil {
		b.Fatal(err)
	}
	txn := w.DB.WriteTxn(w.Sources)
	insertSynced(txn, w.Sources)
	txn.Commit()
	return w
}

// newWholeHive returns a hive with both cells, the tables that they read, and real maps.
func newWholeHive(maps pinnedmaps.Batches, more ...cell.Cell) *upstream.Hive {
	return newHive(append(more, Cell, cell.Provide(func() pinnedmaps.Batches { return maps }))...)
}

// newHive returns a hive with the cell servicecontroller, the tables that it reads, and more cells.
func newHive(more ...cell.Cell) *upstream.Hive {
	return hive.New(append(more, celltest.Infrastructure(), driftledger.Cell, agentconfig.Cell, servicecontroller.Cell,
		cell.Provide(k8s.NewServiceTable, k8s.NewEndpointSliceTable, k8s.NewPodTable, k8s.NewNodeTable, cilium.NewNodeTable, nodes.NewTable, nodeaddresses.NewTable,
			endpoints.NewTable, sources.NewTable, apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
			statedb.RWTable[*k8s.Service].ToTable, statedb.RWTable[*k8s.EndpointSlice].ToTable, statedb.RWTable[*k8s.Pod].ToTable,
			statedb.RWTable[*k8s.Node].ToTable, statedb.RWTable[*cilium.Node].ToTable, statedb.RWTable[*nodes.Node].ToTable, statedb.RWTable[nodeaddresses.Address].ToTable,
			statedb.RWTable[*endpoints.Endpoint].ToTable, statedb.RWTable[sources.Source].ToTable))...)
}

// insertSynced marks all tables as synced with the API server.
func insertSynced(txn statedb.WriteTxn, table statedb.RWTable[sources.Source]) {
	for _, name := range []string{"k8s-services", "k8s-endpointslices", "k8s-pods", "k8s-nodes", "cilium-nodes"} {
		_, _, _ = table.Insert(txn, sources.Source{Table: name, State: sources.Synced})
	}
}

func (w *whole) start() {
	if err := w.hive.Start(w.log, context.Background()); err != nil {
		w.Fatal(err)
	}
}

func (w *whole) stop() {
	if err := w.hive.Stop(w.log, context.Background()); err != nil {
		w.Fatal(err)
	}
}

// wait waits until n entries have been written.
func (w *whole) wait(n int) {
	for timeout := time.After(time.Minute); n > 0; {
		select {
		case more := <-w.written:
			n -= more
		case <-timeout:
			w.Fatalf("%d entries are missing", n)
		}
	}
}

// awaitInForce waits until n services are in the table and in force.
func (w *whole) awaitInForce(n int) {
	for deadline := time.Now().Add(time.Minute); ; {
		all, changed := w.Rows.AllWatch(w.DB.ReadTxn())
		pending := 0
		for row := range all {
			if row.Status.Kind != reconciler.StatusKindDone {
				pending++
			}
		}
		if pending == 0 && w.Rows.NumObjects(w.DB.ReadTxn()) == n {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(deadline)):
			w.Fatalf("%d services are not in force", pending)
		}
	}
}

// objects returns a Service and its slice as an API server sends them.
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

// insert inserts the rows of Kubernetes.
func (w *whole) insert(from, to int, port int32) {
	txn := w.DB.WriteTxn(w.Services, w.Slices)
	defer txn.Commit()
	for i := from; i < to; i++ {
		s, e := objects(i, port)
		if port == firstPort {
			insertObject(w, txn, w.Services, s)
		}
		insertObject(w, txn, w.Slices, e)
	}
}

// insertObject inserts the row of an object.
func insertObject[R any](t testing.TB, txn statedb.WriteTxn, table statedb.RWTable[R], object kruntime.Object) {
	row, err := k8sobjects.FromServer(object, "one")
	if err == nil {
		_, _, err = table.Insert(txn, any(row).(R))
	}
	if err != nil {
		t.Fatal(err)
	}
}

const firstPort = 8080

// heap returns the size of the heap in use, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkPrivilegedServices measures 50,000 services with one backend each through both cells: the time from the start of the cells, with the rows of
// Kubernetes present, until the last entry is in the maps, and until the table reports it; the heap in use; and one change, from its row in k8s-endpointslices
// to the map.
func BenchmarkPrivilegedServices(b *testing.B) {
	for b.Loop() {
		w := newWhole(b, nil)
		began := heap()
		w.insert(0, many, firstPort)
		b.ReportMetric(float64(heap()-began)/many, "heap-B/kubernetes")
		cpu, begin := processorTime(b), time.Now()
		w.start()
		w.wait(many)
		b.ReportMetric(float64(time.Since(begin).Nanoseconds()), "ns/sync")
		w.awaitInForce(many)
		b.ReportMetric(float64(time.Since(begin).Nanoseconds()), "ns/told")
		b.ReportMetric(float64((processorTime(b) - cpu).Nanoseconds()), "ns/cpu")
		b.ReportMetric(float64(heap()-began)/many, "heap-B/service")
		var took []time.Duration
		for i := range 1000 {
			at := i * 7919 % many
			begin := time.Now()
			w.insert(at, at+1, firstPort+1)
			w.wait(1)
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/change-p50")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "ns/change-p99")
		w.stop()
	}
}
