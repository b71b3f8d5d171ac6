package reflectors

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

func TestRun_FillsTablesAndFollows(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"lists": false, "streams": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := kubetest.New(t) // the one test of this package with sockets
			if streams {
				server.EnableWatchList()
			}
			server.Put(node("one", "192.0.2.1"), pod("a", "mine", "one"), pod("a", "other", "two"),
				&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: json.RawMessage(`{"a": "<"}`)},
				&ciliumv2.CiliumClusterwideNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: json.RawMessage(`{}`)})
			r := follow(t, server, Settings{}, false)
			r.synced(t)
			r.becomesSame(t, server)
			if done, _ := r.table("k8s-nodes").Initialized(r.DB.ReadTxn()); !done || len(r.keys("cilium-networkpolicies")) != 2 {
				t.Error("not initialized, or a policy is missing")
			}
			if got := r.keys("k8s-pods"); len(got) != 1 {
				t.Errorf("pods %v", got)
			}
			if streams {
				streamedOnce(t, server)
			}
			server.Put(node("two", "192.0.2.2"))
			server.Remove(kubeapi.Nodes, "", "one")
			server.Remove(kubeapi.CiliumClusterwidePolicies, "", "p")
			r.becomesSame(t, server)
			r.stop()
			if problems := r.health.degraded(); len(problems) > 0 {
				t.Errorf("health: %q", problems)
			}
		})
	}
}

// streamedOnce checks that nodes were streamed once, and never listed.
func streamedOnce(t *testing.T, server *kubetest.Server) {
	t.Helper()
	streams := 0
	for _, request := range server.Requests() {
		query, err := url.ParseQuery(request.Query)
		if err != nil {
			t.Fatal(err)
		}
		if request.Resource != kubeapi.Nodes.String() {
			continue
		}
		if request.Verb == "list" {
			t.Errorf("nodes were listed: %s", request.Query)
		}
		if query.Get("sendInitialEvents") == "true" {
			streams++
		}
	}
	if streams != 1 {
		t.Errorf("nodes were streamed %d times", streams)
	}
}

func TestReplace_EmptyListIsConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("one", "192.0.2.1"), node("two", "192.0.2.2"))
		r := follow(t, server, Settings{}, false)
		r.synced(t)
		row, _ := r.table("k8s-nodes").Get(r.DB.ReadTxn(), "one")
		server.EmptyLists(kubeapi.Nodes, 1)
		server.Compact() // all is listed again
		server.Put(node("three", "192.0.2.3"))
		r.becomesSame(t, server)
		if again, _ := r.table("k8s-nodes").Get(r.DB.ReadTxn(), "one"); again != row {
			t.Error("an unchanged row was written again")
		}
		quorum := 0
		for _, request := range server.Requests() {
			if request.Verb == "list" && request.Resource == "nodes" && request.Query != "" && !has(request.Query, "resourceVersion=") {
				quorum++
			}
		}
		if quorum == 0 {
			t.Error("no list was read by quorum")
		}
		// Objects that were deleted on the server are deleted.
		server.Stop()
		server.Remove(kubeapi.Nodes, "", "one")
		server.Remove(kubeapi.Nodes, "", "two")
		server.Remove(kubeapi.Nodes, "", "three")
		server.Compact()
		server.Start(t)
		time.Sleep(holdTime)
		r.becomesSame(t, server)
	})
}

func TestFromSnapshot_WithTheServerDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("one", "192.0.2.1"), node("two", "192.0.2.2"), pod("a", "mine", "one"))
		copyOnDisk := filepath.Join(t.TempDir(), "k8s-snapshot")
		r := follow(t, server, Settings{Copy: copyOnDisk}, false)
		r.synced(t)
		r.becomesSame(t, server)
		eventually(t, "the copy holds all tables", func() bool {
			for _, table := range r.All() {
				if r.source(table.Name()).Copy.IsZero() {
					return false
				}
			}
			return true
		})
		r.stop()
		server.Stop()

		again := follow(t, server, Settings{Copy: copyOnDisk, SyncTimeout: time.Millisecond}, false)
		eventually(t, "the copy is used", func() bool { return again.source("k8s-nodes").Copied() })
		if err := again.same(server, "one"); err != nil {
			t.Error(err)
		}
		if done, _ := again.table("k8s-nodes").Initialized(again.DB.ReadTxn()); done {
			t.Error("a copy makes a table initialized")
		}
		row, _ := again.table("k8s-nodes").Get(again.DB.ReadTxn(), "one")
		server.Remove(kubeapi.Nodes, "", "two")
		server.Put(node("three", "192.0.2.3"))
		server.EmptyLists(kubeapi.Nodes, 1) // an empty first list needs a confirmation, too
		server.Start(t)
		again.synced(t)
		if _, held := again.table("k8s-nodes").Get(again.DB.ReadTxn(), "two"); !held {
			t.Error("a node that the first list lacks was removed at once")
		}
		time.Sleep(holdTime)
		again.becomesSame(t, server)
		if after, _ := again.table("k8s-nodes").Get(again.DB.ReadTxn(), "one"); after != row {
			t.Error("a row that equals the copy's was written again")
		}
		select {
		case <-again.ended:
			t.Error("the agent ended although it had a copy")
		default:
		}
	})
}

func TestSyncTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Deny("list", kubeapi.CiliumNodes)
		server.Deny("watch", kubeapi.CiliumNodes)
		r := follow(t, server, Settings{SyncTimeout: 3 * time.Second}, false)
		<-r.ended
		if row := r.source("cilium-nodes"); !has(row.WaitingFor, "ciliumnodes.cilium.io") || !has(row.WaitingFor, "forbidden") {
			t.Errorf("waiting for %q", row.WaitingFor)
		}
		// With pods of a previous run the agent keeps waiting.
		carrying := follow(t, server, Settings{SyncTimeout: time.Millisecond}, true)
		eventually(t, "it is said", func() bool { return carrying.level("sync") == cell.StatusDegraded })
		select {
		case <-carrying.ended:
			t.Error("it ended")
		default:
		}
	})
}

// TestWaiting_ReportsWhyServerIsUnavailable also covers servers that stream first lists.
func TestWaiting_ReportsWhyServerIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.EnableWatchList()
		server.Stop()
		r := follow(t, server, Settings{}, false)
		eventually(t, "the reason is said", func() bool {
			return has(r.source("k8s-nodes").WaitingFor, "connection refused") && r.level("nodes") == cell.StatusDegraded
		})
		server.Start(t)
		r.synced(t)
		eventually(t, "all is well", func() bool { return len(r.health.degraded()) == 0 })
	})
}

func TestRejects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		broken := func(o *corev1.Node) *corev1.Node {
			o.Labels = map[string]string{"x": "not a value"}
			return o
		}
		server.Put(node("one", "192.0.2.1"), broken(node("bad", "192.0.2.2")))
		r := follow(t, server, Settings{}, false)
		r.synced(t)
		rejected := func(name string) (tables.Reject, bool) {
			row, _, ok := r.Rejects.Get(r.DB.ReadTxn(), tables.RejectByKey("nodes "+name))
			return row, ok
		}
		if row, ok := rejected("bad"); !ok || !has(row.Reason, "not a value") || len(r.keys("k8s-nodes")) != 1 {
			t.Errorf("%+v, nodes %v", row, r.keys("k8s-nodes"))
		}
		eventually(t, "health says so", func() bool { return r.level("nodes") == cell.StatusDegraded })
		// A good row stays while its object is malformed, also after a list.
		var stored corev1.Node
		server.Get(kubeapi.Nodes, "", "one", &stored)
		server.Put(broken(&stored))
		eventually(t, "it is rejected", func() bool { row, ok := rejected("one"); return ok && row.Kept })
		server.Compact()
		server.Put(node("bad", "192.0.2.2"))
		eventually(t, "the other is healed", func() bool { _, ok := rejected("bad"); return !ok && len(r.keys("k8s-nodes")) == 2 })
		if !has(r.keys("k8s-nodes")["one"], "192.0.2.1") {
			t.Errorf("nodes %v", r.keys("k8s-nodes"))
		}
		server.Remove(kubeapi.Nodes, "", "one")
		eventually(t, "health is well again", func() bool { return r.level("nodes") == cell.StatusOK })
		if _, ok := rejected("one"); ok || len(r.keys("k8s-nodes")) != 1 {
			t.Error("a deleted object is rejected still")
		}
	})
}

// An object with an invalid part is used without that part, from a list and from an event, and does not make the health Degraded.
func TestRejects_InvalidPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("listed", "not an address"))
		r := follow(t, server, Settings{}, false)
		r.synced(t)
		server.Put(node("told", "300.0.0.1"))
		for _, name := range []string{"listed", "told"} {
			noted := func() bool {
				row, _, ok := r.Rejects.Get(r.DB.ReadTxn(), tables.RejectByKey("nodes "+name))
				return ok && row.Used && !row.Kept
			}
			eventually(t, name+" is used and noted", func() bool { return noted() && r.keys("k8s-nodes")[name] != "" })
			eventually(t, "health is well", func() bool { return r.level("nodes") == cell.StatusOK })
			server.Put(node(name, "192.0.2.9"))
			eventually(t, name+" is healed", func() bool { return !noted() && has(r.keys("k8s-nodes")[name], "192.0.2.9") })
		}
	})
}
