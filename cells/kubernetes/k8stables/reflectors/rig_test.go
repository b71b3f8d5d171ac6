package reflectors

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// ended is a fake hive.Shutdowner.
type ended chan struct{}

func (e ended) Shutdown(...hive.ShutdownOption) { close(e) }

// rig is a running source with its tables.
type rig struct {
	*tables.Set
	health *recorder
	ended  ended
	stores []*store
	stop   func()
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newSet(t testing.TB) *tables.Set {
	t.Helper()
	db := statedb.New()
	return tables.New(tables.Params{
		DB: db, Nodes: must[statedb.RWTable[*k8s.Node]](t)(k8s.NewNodeTable(db)),
		Pods:            must[statedb.RWTable[*k8s.Pod]](t)(k8s.NewPodTable(db)),
		Namespaces:      must[statedb.RWTable[*k8s.Namespace]](t)(k8s.NewNamespaceTable(db)),
		Services:        must[statedb.RWTable[*k8s.Service]](t)(k8s.NewServiceTable(db)),
		Slices:          must[statedb.RWTable[*k8s.EndpointSlice]](t)(k8s.NewEndpointSliceTable(db)),
		NetworkPolicies: must[statedb.RWTable[*k8s.NetworkPolicy]](t)(k8s.NewNetworkPolicyTable(db)),
		CiliumNodes:     must[statedb.RWTable[*cilium.Node]](t)(cilium.NewNodeTable(db)),
		CiliumEndpoints: must[statedb.RWTable[*cilium.Endpoint]](t)(cilium.NewEndpointTable(db)),
		Identities:      must[statedb.RWTable[*cilium.Identity]](t)(cilium.NewIdentityTable(db)),
		CiliumPolicies:  must[statedb.RWTable[*cilium.Policy]](t)(cilium.NewPolicyTable(db)),
		CIDRGroups:      must[statedb.RWTable[*cilium.CIDRGroup]](t)(cilium.NewCIDRGroupTable(db)),
		Stage:           must[*tables.Stage](t)(tables.NewStage(db)),
		Sources:         must[statedb.RWTable[sources.Source]](t)(sources.NewTable(db)),
		Rejects:         must[statedb.RWTable[tables.Reject]](t)(tables.NewRejectTable(db)),
	})
}

// follow runs a source against a server.
func follow(t testing.TB, server *kubetest.Server, settings Settings, carryOn bool) *rig {
	t.Helper()
	return followWith(t, server.Client(t), settings, carryOn)
}

func followWith(t testing.TB, client *kubeapi.Client, settings Settings, carryOn bool) *rig {
	t.Helper()
	if settings.NodeName == "" {
		settings.NodeName = "one"
	}
	if settings.CopyEvery == 0 {
		settings.CopyEvery = 20 * time.Millisecond
	}
	set := newSet(t)
	r := &rig{Set: set, health: newRecorder(), ended: make(ended)}
	source, err := New(settings, set, client, func() bool { return carryOn }, r.ended, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.stores = source.stores
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := source.Run(ctx, r.health); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(r.stop)
	return r
}

// eventually polls a condition that has no channel.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) table(name string) tables.Table {
	t, ok := r.ByName(name)
	if !ok {
		panic(fmt.Errorf("no table %s", name))
	}
	return t
}

func (r *rig) keys(name string) map[string]string {
	out := map[string]string{}
	for row := range r.table(name).All(r.DB.ReadTxn()) {
		text, _ := json.Marshal(row)
		out[row.Key()] = string(text)
	}
	return out
}

func (r *rig) source(name string) sources.Source {
	row, _, _ := r.Sources.Get(r.DB.ReadTxn(), sources.ByTable(name))
	return row
}

func (r *rig) synced(t testing.TB) {
	t.Helper()
	eventually(t, "all tables are synced", func() bool {
		for _, table := range r.All() {
			if r.source(table.Name()).State != sources.Synced {
				return false
			}
		}
		return true
	})
}

// heldRows returns how many rows of a table the last list lacked.
func (r *rig) heldRows(table string) int {
	for _, s := range r.stores {
		if s.table.Name() == table {
			s.report.mu.Lock()
			defer s.report.mu.Unlock()
			return s.report.held.rows
		}
	}
	return 0
}

func (r *rig) level(name string) cell.Level { return r.health.level(name) }

// recorder is a cell.Health that stores the last report of each scope.
type recorder struct {
	*levels
	name string
}

type levels struct {
	mu   sync.Mutex
	last map[string]cell.Level
	text map[string]string
}

func newRecorder() *recorder {
	return &recorder{&levels{last: map[string]cell.Level{}, text: map[string]string{}}, ""}
}

func (r *recorder) set(level cell.Level, text string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[r.name], r.text[r.name] = level, fmt.Sprint(text, ": ", err)
}

func (r *recorder) level(name string) cell.Level {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[name]
}

func (r *recorder) degraded() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, level := range r.last {
		if level == cell.StatusDegraded {
			out = append(out, name+": "+r.text[name])
		}
	}
	return out
}

func (r *recorder) OK(text string)                   { r.set(cell.StatusOK, text, nil) }
func (r *recorder) Stopped(text string)              { r.set(cell.StatusStopped, text, nil) }
func (r *recorder) Degraded(text string, err error)  { r.set(cell.StatusDegraded, text, err) }
func (r *recorder) NewScope(name string) cell.Health { return &recorder{r.levels, name} }
func (r *recorder) Close()                           {}

func node(name, address string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}}
}

func pod(namespace, name, on string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: on}}
}

// same compares the tables with the server's objects.
func (r *rig) same(server *kubetest.Server, nodeName string) error {
	for _, table := range r.All() {
		want := map[string]string{}
		for _, k := range kinds(nodeName) {
			if k.table != table.Name() {
				continue
			}
			for _, o := range server.List(k.resource) {
				if row, err := k8sobjects.FromServer(o, nodeName); err == nil {
					text, _ := json.Marshal(row)
					want[row.Key()] = string(text)
				}
			}
		}
		got := r.keys(table.Name())
		for key, text := range want {
			if got[key] != text {
				return fmt.Errorf("%s %s is %s, want %s", table.Name(), key, got[key], text)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("%s has %d rows, want %d", table.Name(), len(got), len(want))
		}
	}
	return nil
}

func (r *rig) becomesSame(t testing.TB, server *kubetest.Server) {
	t.Helper()
	eventually(t, "the tables hold what the server has", func() bool { return r.same(server, "one") == nil })
}
