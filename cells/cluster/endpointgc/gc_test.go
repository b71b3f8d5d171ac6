package endpointgc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/tables/staleobjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// endpoint returns a CiliumEndpoint that belongs to the Pod of its name on a node.
func endpoint(name, node string) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{ciliumv2.NodeLabel: node},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID("uid-" + name)}}}}
}

func ciliumNode(name, manager string) *ciliumv2.CiliumNode {
	return &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ciliumv2.ManagedByLabel: manager}}}
}

// cluster has live objects of each kind, and stale ones for each reason.
func cluster(t testing.TB) *kubetest.Server {
	t.Helper()
	s := kubetest.New(t, kubetest.InMemory())
	replaced, owned := endpoint("replaced", "one"), endpoint("health", "one")
	replaced.OwnerReferences[0].UID = "uid-of-the-one-before"
	owned.OwnerReferences[0].Kind = "CiliumNode"
	plain := endpoint("plain", "one")
	plain.OwnerReferences = nil
	s.Put(node("one"), pod("lives"), pod("replaced"), pod("plain"), pod("lost"), endpoint("lives", "one"), replaced, owned, plain,
		endpoint("gone", "one"), endpoint("lost", "two"), ciliumNode("one", ciliumv2.ManagedByUs), ciliumNode("two", ciliumv2.ManagedByUs), ciliumNode("three", "other"))
	return s
}

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		client := cluster(t).Client(t)
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return client },
			leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable)}
	})
}

func newCollector(t *testing.T, s *kubetest.Server) *collector {
	t.Helper()
	db := statedb.New()
	table, err := staleobjects.NewTable(db)
	leaders, errLeaders := leadership.NewTable(db)
	if err := errors.Join(err, errLeaders); err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(leaders)
	defer txn.Abort()
	if _, _, err := leaders.Insert(txn, leadership.Leadership{Lease: "x", Until: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	return &collector{params{Log: slog.New(slog.DiscardHandler), DB: db, Table: table, Leadership: leaders, Client: s.Client(t)}}
}

// round runs a round and compares the number of deleted objects.
func round(t *testing.T, c *collector, want int) {
	t.Helper()
	if _, deleted, err := c.round(t.Context()); err != nil || deleted != want {
		t.Fatalf("%d deleted, want %d: %v", deleted, want, err)
	}
}

func names(s *kubetest.Server, r kubeapi.Resource) string {
	var out []string
	for _, o := range s.List(r) {
		out = append(out, o.(metav1.Object).GetName())
	}
	return strings.Join(out, " ")
}

func TestRound_SecondRoundDeletes(t *testing.T) {
	t.Parallel()
	s := cluster(t)
	c := newCollector(t, s)
	round(t, c, 0)
	round(t, c, 4)
	round(t, c, 0)
	if got := names(s, kubeapi.CiliumEndpoints); got != "health lives plain" {
		t.Errorf("endpoints left: %s", got)
	}
	if got := names(s, kubeapi.CiliumNodes); got != "one three" {
		t.Errorf("CiliumNodes left: %s", got)
	}
	for _, q := range s.Requests() {
		if q.Resource == "pods" && q.Verb == "watch" {
			t.Error("pods were watched")
		}
	}
}

// TestRound_RecreatedObject_IsKept: a Pod or Node is created again between two rounds, or between the lists and the deletion.
func TestRound_RecreatedObject_IsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ method, path string }{
		"after a round":      {},
		"after the lists":    {http.MethodGet, "/api/v1/namespaces/ns/pods/gone"},
		"endpoint rewritten": {http.MethodDelete, "/apis/cilium.io/v2/namespaces/ns/ciliumendpoints/gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.New(t)
			s.Put(node("one"), endpoint("gone", "one"))
			gc := newCollector(t, s)
			round(t, gc, 0)
			again := endpoint("gone", "one")
			again.Status.ID = 7
			if c.method == "" {
				s.Put(pod("gone"))
			}
			s.Fault(func(q *http.Request) (int, string) {
				if q.Method == c.method && q.URL.Path == c.path {
					s.Put(pod("gone"), again)
				}
				return 0, ""
			})
			round(t, gc, 0)
			round(t, gc, 0)
			if got := names(s, kubeapi.CiliumEndpoints); got != "gone" {
				t.Errorf("left: %q", got)
			}
		})
	}
}

func TestRound_ManyObjects_NeedThirdRound(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("one"))
	for i := range 20 {
		s.Put(endpoint(fmt.Sprintf("e%02d", i), "one"))
	}
	c := newCollector(t, s)
	round(t, c, 0)
	round(t, c, 0)
	round(t, c, 20)
}

// TestRound_FailsOnce: one object that must not be deleted does not block the others; after an error of the server, the round sends no further deletions.
func TestRound_FailsOnce(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]int{http.StatusForbidden: 5, http.StatusInternalServerError: 1} {
		s := kubetest.New(t)
		s.Put(node("one"))
		for i := range 5 {
			s.Put(endpoint(fmt.Sprint("e", i), "one"), pod("of-others"))
		}
		c := newCollector(t, s)
		round(t, c, 0)
		asked := 0
		s.Fault(func(q *http.Request) (int, string) {
			if q.Method != http.MethodDelete {
				return 0, ""
			}
			if asked++; strings.HasSuffix(q.URL.Path, "/e0") {
				return code, ""
			}
			return 0, ""
		})
		if _, _, err := c.round(t.Context()); err == nil || asked != want {
			t.Errorf("with %d, %d deletions were asked for, want %d (%v)", code, asked, want, err)
		}
	}
}

// TestRound_OutageDeletesNothing: a failed list invalidates the round, and an incomplete list is not used.
func TestRound_OutageDeletesNothing(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("one"), pod("a"), endpoint("a", "one"), endpoint("gone", "one"))
	c := newCollector(t, s)
	round(t, c, 0)
	for _, path := range []string{"/api/v1/pods", "/api/v1/nodes", "/apis/cilium.io/v2/ciliumendpoints", "/api/v1/namespaces/ns/pods/gone"} {
		s.Fault(func(q *http.Request) (int, string) {
			if q.URL.Path == path {
				return http.StatusServiceUnavailable, ""
			}
			return 0, ""
		})
		if _, deleted, err := c.round(t.Context()); err == nil || deleted > 0 {
			t.Errorf("%s fails: %d deleted, %v", path, deleted, err)
		}
	}
	s.Fault(nil)
	round(t, c, 1)
	if got := names(s, kubeapi.CiliumEndpoints); got != "a" {
		t.Errorf("left: %q", got)
	}
}
