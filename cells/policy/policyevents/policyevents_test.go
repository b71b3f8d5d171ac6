package policyevents

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		return []cell.Cell{Cell, cell.Provide(
			func() *kubeapi.Client { return server.Client(t) },
			func() agentconfig.Agent { return agentconfig.Agent{NodeName: "one"} },
			func() hive.ScriptCmdsOut { return server.Commands(t) },
			policies.NewTable, statedb.RWTable[*policies.Policy].ToTable,
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		)}
	})
}

// rig is the controller of a node over tables of its own.
type rig struct {
	*controller
	t        *testing.T
	policies statedb.RWTable[*policies.Policy]
	health   *cell.SimpleHealth
}

// newRig starts the controller of a node in a cluster of some nodes.
func newRig(t *testing.T, server *kubetest.Server, node string, nodes int) *rig {
	t.Helper()
	db := statedb.New()
	rows, err := policies.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := k8s.NewNodeTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(cluster)
	for i := range nodes {
		if _, _, err := cluster.Insert(txn, &k8s.Node{Name: fmt.Sprint("n", i)}); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	health, simple := cell.NewSimpleHealth()
	r := &rig{newController(params{Log: slog.New(slog.DiscardHandler), DB: db, Agent: agentconfig.Agent{NodeName: node}, Client: server.Client(t), Policies: rows,
		Nodes: cluster}), t, rows, simple}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.run(ctx, health); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

// set writes the row of a policy of namespace shop, with an overflow unless the text is empty.
func (r *rig) set(name, uid, text string) {
	r.t.Helper()
	p := &policy.Policy{Ref: policy.Ref{Kind: policy.Cilium, Namespace: "shop", Name: name}, UID: uid,
		Problems: []policy.Problem{{Path: "spec.ingress", Reason: policy.ReasonUnsupported, Message: "another problem"}}}
	if text != "" {
		p.Problems = append(p.Problems, policy.Problem{Path: "spec", Reason: policy.ReasonOverflow, Message: text})
	}
	txn := r.DB.WriteTxn(r.policies)
	if _, _, err := r.policies.Insert(txn, &policies.Policy{Policy: p}); err != nil {
		r.t.Fatal(err)
	}
	txn.Commit()
}

func (r *rig) remove(name string) {
	r.t.Helper()
	txn := r.DB.WriteTxn(r.policies)
	if _, _, err := r.policies.Delete(txn, &policies.Policy{Policy: &policy.Policy{Ref: policy.Ref{Kind: policy.Cilium, Namespace: "shop", Name: name}}}); err != nil {
		r.t.Fatal(err)
	}
	txn.Commit()
}

// requests returns the number of requests to create an Event.
func requests(s *kubetest.Server) (n int) {
	for _, r := range s.Requests() {
		if r.Verb == "create" {
			n++
		}
	}
	return n
}

// Two nodes have the same problem with different numbers: the object has one Event, which names the first node. A policy without the problem, and one that is no
// object of the API server, have none.
func TestEvents_OneForAllNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		one, two := newRig(t, s, "one", 2), newRig(t, s, "two", 2)
		one.set("large", "u", "7 of its address ranges are not in force\x1b[2J")
		time.Sleep(time.Second)
		two.set("large", "u", "9 of its address ranges are not in force")
		one.set("fine", "v", "")
		one.set("of-a-file", "", "3 of its address ranges are not in force")
		time.Sleep(time.Second)
		events := s.List(kubeapi.Events)
		if len(events) != 1 || requests(s) != 2 {
			t.Fatalf("%d Events by %d requests: %v", len(events), requests(s), events)
		}
		e := events[0].(*corev1.Event)
		if e.Type != corev1.EventTypeWarning || e.Reason != Reason || e.Source.Host != "one" || e.Namespace != "shop" || e.InvolvedObject.UID != "u" ||
			e.InvolvedObject.Kind != "CiliumNetworkPolicy" || e.InvolvedObject.APIVersion != "cilium.io/v2" || e.InvolvedObject.Name != "large" {
			t.Errorf("the Event is %+v", e)
		}
		if want := `Node one, and maybe others: 7 of its address ranges are not in force\x1b[2J`; e.Message != want {
			t.Errorf("message %q, want %q", e.Message, want)
		}
	})
}

// An Event is created again after an hour while the problem lasts. A problem that comes and goes, and another text, cause no other requests.
func TestEvents_RepeatedEachHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		r := newRig(t, s, "one", 1)
		for i := range 50 {
			r.set("large", "u", fmt.Sprint(i+1, " ranges"))
			time.Sleep(30 * time.Second)
			r.set("large", "u", "")
			time.Sleep(30 * time.Second)
		}
		if n := requests(s); n != 1 {
			t.Errorf("%d requests in 50 minutes, want 1", n)
		}
		r.set("large", "u", "lasts")
		time.Sleep(time.Hour)
		if n := requests(s); n != 2 {
			t.Errorf("%d requests after an hour, want 2", n)
		}
		r.remove("large")
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if n := requests(s); n != 2 || len(r.reports) != 0 {
			t.Errorf("%d requests and %d reports after the policy was deleted", n, len(r.reports))
		}
	})
}

// An author creates a policy again and again: each has another UID. The agent creates three Events, and then one a minute.
func TestEvents_NewPoliciesInALoop_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		r := newRig(t, s, "one", 1)
		for i := range 600 {
			r.set("large", fmt.Sprint(i), "too large")
			time.Sleep(time.Second)
		}
		if n := requests(s); n < burst+8 || n > burst+10 {
			t.Errorf("%d requests in ten minutes, want %d and one a minute", n, burst)
		}
	})
}

// In a large cluster, agents that find the same problem together spread their requests.
func TestEvents_LargeCluster_SpreadsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		const nodes, agents = 5000, 20
		for i := range agents {
			newRig(t, s, fmt.Sprint("n", i), nodes).set("large", "u", "too large")
		}
		time.Sleep(nodes * perNode / 2)
		if n := requests(s); n == 0 || n == agents {
			t.Errorf("%d of %d agents have sent a request after half of the time", n, agents)
		}
		time.Sleep(nodes * perNode / 2)
		if n := requests(s); n != agents {
			t.Errorf("%d requests in the end, want %d", n, agents)
		}
	})
}

// A rejected Event is not sent again for an hour. After a failed request the Event is sent soon, unless the policy was deleted meanwhile.
func TestEvents_FailedRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code     int
		degraded bool
	}{{http.StatusForbidden, false}, {http.StatusUnprocessableEntity, false}, {http.StatusInternalServerError, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := kubetest.New(t, kubetest.InMemory())
			var failing atomic.Bool
			failing.Store(true)
			s.Fault(func(r *http.Request) (int, string) {
				if failing.Load() && r.Method == http.MethodPost {
					return c.code, ""
				}
				return 0, ""
			})
			r := newRig(t, s, "one", 1)
			r.set("large", "u", "too large")
			r.set("also-large", "v", "")
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if n := requests(s); n != 1 || (r.health.Level == cell.StatusDegraded) != c.degraded {
				t.Errorf("%d: %d requests; health %s %s", c.code, n, r.health.Level, r.health.Status)
			}
			failing.Store(false)
			time.Sleep(2 * time.Minute)
			if n := len(s.List(kubeapi.Events)); (n == 1) != c.degraded {
				t.Errorf("%d: %d Events after the fault", c.code, n)
			}
			r.remove("large")
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			if len(r.reports) != 0 || r.health.Level != cell.StatusOK || r.health.Status != "0 policies exceed limits of this node" {
				t.Errorf("%d: %d reports after the policy was deleted: %s %s", c.code, len(r.reports), r.health.Level, r.health.Status)
			}
		})
	}
}
