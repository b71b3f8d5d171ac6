package servicemaps

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

const memoryServices = 20_000

// serviceBytes limits the heap in bytes for a Service with one slice of two endpoints: its rows of Kubernetes, its rows in services, frontends and backends, and
// the state of both cells. It is 1.15 times the measured value: under the race detector each of about 15 objects of less than 16 bytes takes 16 bytes.
const serviceBytes = 4_300

// sink is a map that stores nothing: the entries of a real map are not in the heap.
type sink[K comparable, V any] struct{ *fake[K, V] }

func (sink[K, V]) Put([]K, []V) servicemap.Failures { return nil }

func sinks() servicemap.Maps {
	f := newFakes(1<<16, 1<<17, 1)
	return servicemap.Maps{Services: sink[bpf.ServiceKey, bpf.Service]{f.services}, Backends: sink[uint32, bpf.Backend]{f.backends},
		Slots: sink[uint32, uint32]{f.slots}, Maglev: f.maglev, Members: f.members, Ranges: f.ranges, Affinity: f.affinity}
}

// derivedTables are the tables that the cell servicecontroller writes.
type derivedTables struct {
	cell.In

	Services  statedb.Table[*services.Service]
	Frontends statedb.Table[*frontends.Frontend]
	Backends  statedb.Table[*backends.Backend]
}

// load returns a Service and its slice.
type load func(i int) (*corev1.Service, *discoveryv1.EndpointSlice)

// twoEndpoints are Services with two endpoints that no other Service has.
func twoEndpoints(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	s, e := objects(i, firstPort)
	second := *e.Endpoints[0].DeepCopy()
	second.Addresses[0] = fmt.Sprintf("10.2.%d.%d", i/250, 1+i%250)
	second.TargetRef.Name = s.Name + "-7d4b9c6f5d-fghij"
	e.Endpoints = append(e.Endpoints, second)
	return s, e
}

// sharedEndpoint are Services with one endpoint each. Five Services share two endpoints.
func sharedEndpoint(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	s, e := objects(i, firstPort)
	pod := i * 2 / 5
	e.Endpoints[0].Addresses[0] = fmt.Sprintf("10.1.%d.%d", pod/250, 1+pod%250)
	return s, e
}

// decoded returns a copy of an object that shares no text, like an object from an API server.
func decoded[O any](t testing.TB, object *O) *O {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	object = new(O)
	if err := json.Unmarshal(text, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// stages holds the heap after each stage, in bytes for each Service.
type stages struct{ kubernetes, all int64 }

// measure measures the heap for the Services of a load. Without maps only the cell servicecontroller runs. It calls done before the cells stop.
func measure(t testing.TB, of load, maps bool, done func(*whole, derivedTables)) (heaps stages) {
	t.Helper()
	var derived derivedTables
	w := &whole{TB: t, log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))}
	cells := []cell.Cell{cell.Provide(sinks), cell.Invoke(func(t wholeTables, d derivedTables) { w.wholeTables, derived = t, d })}
	if maps {
		cells = append(cells, cell.Module("service-maps", "Under test", implementation))
	}
	w.hive = newHive(cells...)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	w.hive.RegisterFlags(flags)
	if err := flags.Parse([]string{"--state-dir=" + t.TempDir(), "--node-name=one"}); err != nil {
		t.Fatal(err)
	}
	if err := w.hive.Populate(w.log); err != nil {
		t.Fatal(err)
	}
	txn := w.DB.WriteTxn(w.Sources)
	insertSynced(txn, w.Sources)
	txn.Commit()
	empty := heap()
	txn = w.DB.WriteTxn(w.Services, w.Slices)
	for i := range memoryServices {
		s, e := of(i)
		insertObject(t, txn, w.Services, decoded(t, s))
		insertObject(t, txn, w.Slices, decoded(t, e))
	}
	txn.Commit()
	heaps.kubernetes = (heap() - empty) / memoryServices
	w.start()
	defer w.stop()
	if maps {
		w.awaitInForce(memoryServices)
	} else if err := w.awaitTable(derived.Services); err != nil {
		t.Fatal(err)
	}
	heaps.all = (heap() - empty) / memoryServices
	done(w, derived)
	return heaps
}

// awaitTable waits until a table is complete.
func (w *whole) awaitTable(table statedb.TableMeta) error {
	_, initialized := table.Initialized(w.DB.ReadTxn())
	select {
	case <-initialized:
		return nil
	case <-w.Context().Done():
		return w.Context().Err()
	}
}

// TestServices_TwentyThousand checks that the memory of a Service stays below the limit. It is not parallel: other tests would use the heap too.
func TestServices_TwentyThousand(t *testing.T) {
	heaps := measure(t, twoEndpoints, true, func(w *whole, d derivedTables) {
		if n := d.Backends.NumObjects(w.DB.ReadTxn()); n != 2*memoryServices {
			t.Errorf("%d backends", n)
		}
	})
	t.Logf("%d bytes of heap for each Service, %d of them for its rows of Kubernetes", heaps.all, heaps.kubernetes)
	if heaps.all > serviceBytes {
		t.Errorf("%d bytes of heap for each Service, want at most %d", heaps.all, serviceBytes)
	}
}

// BenchmarkServices_Bytes measures the memory of a Service by stage, and of the trees of each table.
func BenchmarkServices_Bytes(b *testing.B) {
	for name, of := range map[string]load{"two_endpoints": twoEndpoints, "shared_endpoint": sharedEndpoint} {
		b.Run(name, func(b *testing.B) {
			report := func(what string, bytes int64) { b.ReportMetric(float64(bytes), what+"-B") }
			for b.Loop() {
				first := measure(b, of, false, func(w *whole, d derivedTables) {
					report("tree-k8s-services", measureTree(b, w.DB, w.Services, k8s.NewServiceTable))
					report("tree-k8s-endpointslices", measureTree(b, w.DB, w.Slices, k8s.NewEndpointSliceTable))
					report("tree-services", measureTree(b, w.DB, d.Services, services.NewTable))
					report("tree-frontends", measureTree(b, w.DB, d.Frontends, frontends.NewTable))
					report("tree-backends", measureTree(b, w.DB, d.Backends, backends.NewTable))
				})
				all := measure(b, of, true, func(*whole, derivedTables) {})
				report("kubernetes", all.kubernetes)
				report("servicecontroller", first.all-first.kubernetes)
				report("servicemaps", all.all-first.all)
				report("all", all.all)
			}
		})
	}
}

// measureTree returns the memory of the indexes of a table without its rows, in bytes for each Service.
func measureTree[R any](b *testing.B, db *statedb.DB, from statedb.Table[R], newTable func(*statedb.DB) (statedb.RWTable[R], error)) int64 {
	b.Helper()
	other := statedb.New()
	to, err := newTable(other)
	if err != nil {
		b.Fatal(err)
	}
	before := heap()
	txn := other.WriteTxn(to)
	for row := range from.All(db.ReadTxn()) {
		if _, _, err := to.Insert(txn, row); err != nil {
			b.Fatal(err)
		}
	}
	txn.Commit()
	size := heap() - before
	runtime.KeepAlive(other)
	return size / memoryServices
}
