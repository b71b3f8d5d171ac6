package ciliumendpointslices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		client := server.Client(t)
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return client }, func() hive.ScriptCmdsOut { return server.Commands(t) },
			leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable)}
	})
}

// endpoint returns the CiliumEndpoint of a pod with a unique address.
func endpoint(namespace, name string, n int) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{ciliumv2.NodeLabel: "two"}},
		Status: ciliumv2.EndpointStatus{Identity: &ciliumv2.EndpointIdentity{ID: int64(n)}, Networking: &ciliumv2.EndpointNetworking{Node: "192.0.2.2",
			Addressing: []ciliumv2.AddressPair{{IPv4: fmt.Sprintf("10.1.%d.%d", n/256, n%256)}}}}}
}

// replica is a replica of the cluster role that uses a server.
type replica struct {
	params
	leaders statedb.RWTable[leadership.Leadership]
	health  *recorded
	stop    func() // ends the job
}

// start runs the job of the cell with retries after errors.
func start(t *testing.T, server *kubetest.Server, c Config) *replica {
	t.Helper()
	set, err := newSettings(c)
	db := statedb.New()
	leaders, errLeaders := leadership.NewTable(db)
	if err := errors.Join(err, errLeaders); err != nil {
		t.Fatal(err)
	}
	_, health := cell.NewSimpleHealth()
	r := &replica{health: &recorded{Health: health}, params: params{Log: slog.New(slog.DiscardHandler), DB: db, Leadership: leaders, Settings: set, Client: server.Client(t)}, leaders: leaders}
	r.lead(t, true)
	run := (&controller{r.params}).run
	if !set.enable {
		run = (&remover{r.params}).run
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if run(ctx, r.health) != nil {
				time.Sleep(retryMin)
			}
		}
	}()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// recorded keeps the last report and counts all reports.
type recorded struct {
	cell.Health
	mu      sync.Mutex
	level   cell.Level
	text    string
	reports int
}

func (r *recorded) OK(text string) { r.record(cell.StatusOK, text) }

func (r *recorded) Degraded(text string, err error) {
	r.record(cell.StatusDegraded, fmt.Sprint(text, err))
}

func (r *recorded) record(level cell.Level, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.level, r.text = level, text
	r.reports++
}

func (r *recorded) last() (level cell.Level, text string, reports int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.level, r.text, r.reports
}

func (r *replica) lead(t *testing.T, leads bool) {
	t.Helper()
	row := leadership.Leadership{Lease: "x"}
	if leads {
		row.Until = time.Now().Add(1000 * time.Hour)
	}
	txn := r.DB.WriteTxn(r.leaders)
	defer txn.Abort()
	if _, _, err := r.leaders.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
}

func enabled(most int) Config {
	c := DefaultConfig
	c.Enable, c.Most = true, most
	return c
}

// held returns the pods in the slices of a server as "namespace/name=identity", by name of the slice.
func held(server *kubetest.Server) (pods map[string][]string, complete bool) {
	pods = map[string][]string{}
	for _, object := range server.List(kubeapi.CiliumEndpointSlices) {
		o := object.(*ciliumv2.CiliumEndpointSlice)
		if o.Name == ciliumv2.CompleteSlice {
			complete = true
			continue
		}
		pods[o.Name] = []string{}
		for _, e := range o.Endpoints {
			pods[o.Name] = append(pods[o.Name], fmt.Sprintf("%s/%s=%d", o.PodNamespace, e.Name, e.IdentityID))
		}
	}
	return pods, complete
}

// shape describes slices without their names.
func shape(server *kubetest.Server) string {
	pods, complete := held(server)
	var lines []string
	for _, list := range pods {
		lines = append(lines, strings.Join(list, " "))
	}
	slices.Sort(lines)
	if complete {
		lines = append(lines, "complete")
	}
	return strings.Join(lines, "; ")
}

func expect(t *testing.T, server *kubetest.Server, what, want string) {
	t.Helper()
	if got := shape(server); got != want {
		t.Fatalf("%s: slices hold %q, want %q", what, got, want)
	}
}

// writes counts requests that change slices.
func writes(server *kubetest.Server) (n int) {
	for _, q := range server.Requests() {
		if q.Resource == kubeapi.CiliumEndpointSlices.String() && slices.Contains([]string{"create", "update", "patch", "delete"}, q.Verb) {
			n++
		}
	}
	return n
}

// settled waits until all pending writes are done.
func settled() { time.Sleep(20 * time.Second) }

// noGap checks before each request of the cluster role that each pod with an unchanged CiliumEndpoint stays in a slice once CompleteSlice exists.
func noGap(t *testing.T, server *kubetest.Server) {
	var mu sync.Mutex
	known := map[string]bool{}
	server.Fault(func(*http.Request) (int, string) {
		mu.Lock()
		defer mu.Unlock()
		pods, complete := held(server)
		now := map[string]bool{}
		for _, list := range pods {
			for _, p := range list {
				pod, _, _ := strings.Cut(p, "=")
				now[pod] = true
			}
		}
		for pod := range known {
			if namespace, name, _ := strings.Cut(pod, "/"); complete && !now[pod] && server.Get(kubeapi.CiliumEndpoints, namespace, name, nil) {
				t.Errorf("%s is in no slice: %v", pod, pods)
			}
		}
		known = now
		return 0, ""
	})
}

// reports checks the level of the health and that its text matches a pattern.
func reports(t *testing.T, r *replica, level cell.Level, pattern string) {
	t.Helper()
	synctest.Wait()
	if now, text, _ := r.health.last(); now != level || !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("health is %s, %q, want %s, %q", now, text, level, pattern)
	}
}
