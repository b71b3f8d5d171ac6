package reflectors

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// numbered returns nodes "n1", "n2", ..., with addresses and ranges derived from the numbers.
func numbered(t *testing.T, numbers ...int) (out []any) {
	t.Helper()
	for _, n := range numbers {
		out = append(out, ranged(t, fmt.Sprint("n", n), n, "1"))
	}
	return out
}

// ranged returns a node with the address and the range of a number.
func ranged(t *testing.T, name string, number int, version string) *object {
	t.Helper()
	n := node(name, fmt.Sprint("192.0.2.", number))
	n.ResourceVersion = version
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.0.%d.0/24", number)}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}) // address of the NAT of all nodes
	o, err := converter{nodeName: "one"}.convert(n)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// names returns the names of all rows, sorted.
func (s *store) names() string {
	names := map[string]bool{}
	for row := range s.table.All(s.set.DB.ReadTxn()) {
		names[row.Key()] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), " ")
}

// TestHold_NodesMissingFromList begins with nodes n1 to n5. n1 is this node.
func TestHold_NodesMissingFromList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		list  []int
		after func(t *testing.T, s *store) // event a minute after that list
		then  string                       // rows after that event
		end   string                       // rows five minutes after the list
	}{
		"nothing is missing":                   {list: []int{1, 2, 3, 4, 5}, then: "n1 n2 n3 n4 n5", end: "n1 n2 n3 n4 n5"},
		"some are":                             {list: []int{1, 2}, then: "n1 n2 n3 n4 n5", end: "n1 n2"},
		"this node is not retained":            {list: []int{2, 3, 4}, then: "n2 n3 n4 n5", end: "n2 n3 n4"},
		"a row added meanwhile stays":          {list: []int{1, 2, 6}, then: "n1 n2 n3 n4 n5 n6", end: "n1 n2 n6"},
		"another list does not prolong it":     {list: []int{1, 2}, after: listed(1, 2), then: "n1 n2 n3 n4 n5", end: "n1 n2"},
		"another list has them again":          {list: []int{1, 2}, after: listed(1, 2, 3), then: "n1 n2 n3 n4 n5", end: "n1 n2 n3"},
		"an event restores one":                {list: []int{1, 2}, after: happened("n3", 3, false), then: "n1 n2 n3 n4 n5", end: "n1 n2 n3"},
		"an event deletes one":                 {list: []int{1, 2}, after: happened("n3", 3, true), then: "n1 n2 n4 n5", end: "n1 n2"},
		"another one gets its range":           {list: []int{1, 2}, after: happened("new", 3, false), then: "n1 n2 n4 n5 new", end: "n1 n2 new"},
		"one with its range is deleted":        {list: []int{1, 2}, after: happened("new", 3, true), then: "n1 n2 n3 n4 n5", end: "n1 n2"},
		"another one of the list has it":       {list: []int{1, 2}, after: renamed, then: "n1 n2 n4 n5 new", end: "n1 n2 new"},
		"another list misses more, for longer": {list: []int{1, 2}, after: listed(1), then: "n1 n2 n3 n4 n5", end: "n1 n2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				s.lw.nodeName = "n1"
				health := newRecorder()
				s.report.health = health
				go s.commits(t.Context())
				if err := s.Replace(numbered(t, 1, 2, 3, 4, 5), "10"); err != nil {
					t.Fatal(err)
				}
				s.lw.quorum.Store(true) // confirm lists that lack most of the nodes
				if err := s.Replace(numbered(t, c.list...), "20"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if c.after != nil {
					c.after(t, s)
				}
				time.Sleep(holdTime - time.Minute - time.Second)
				synctest.Wait()
				if got := s.names(); got != c.then {
					t.Errorf("rows %s, want %s", got, c.then)
				}
				if missing := len(strings.Fields(c.then)) - len(strings.Fields(c.end)); (health.level("") == cell.StatusDegraded) != (missing > 0) {
					t.Errorf("%d rows are held, and health is %s", missing, health.level(""))
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := s.names(); got != c.end {
					t.Errorf("in the end rows %s, want %s", got, c.end)
				}
				time.Sleep(holdTime)
				synctest.Wait()
				if health.level("") != cell.StatusOK {
					t.Errorf("in the end health is %s", health.level(""))
				}
			})
		})
	}
}

// listed applies another list, confirmed if it lacks most of the nodes.
func listed(numbers ...int) func(*testing.T, *store) {
	return func(t *testing.T, s *store) {
		s.lw.quorum.Store(true)
		if err := s.Replace(numbered(t, numbers...), "30"); err != nil {
			t.Error(err)
		}
	}
}

// happened applies an event of a node with the address and range of a number.
func happened(name string, number int, deleted bool) func(*testing.T, *store) {
	return func(t *testing.T, s *store) {
		if err := s.take(ranged(t, name, number, "31"), deleted); err != nil {
			t.Error(err)
		}
	}
}

// renamed applies a list in which a node of another name has the address and range of n3.
func renamed(t *testing.T, s *store) {
	s.lw.quorum.Store(true)
	if err := s.Replace(append(numbered(t, 1, 2), ranged(t, "new", 3, "29")), "30"); err != nil {
		t.Error(err)
	}
}

// TestHold_FewMissingNodes_NotDegraded: a few nodes that left while the agent did not watch are mentioned in the health, without Degraded.
func TestHold_FewMissingNodes_NotDegraded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		health := newRecorder()
		s.report.health = health
		all := make([]int, 20)
		for i := range all {
			all[i] = i
		}
		if err := s.Replace(numbered(t, all...), "10"); err != nil {
			t.Fatal(err)
		}
		if err := s.Replace(numbered(t, all[:18]...), "20"); err != nil {
			t.Fatal(err)
		}
		if health.level("") != cell.StatusOK || s.report.held != (missingRows{2, 20}) {
			t.Errorf("health is %s, held %v", health.level(""), s.report.held)
		}
	})
}

// TestHold_ServerRestoredFromABackup: two nodes join after the backup. Their rows stay for holdTime, and longer if their objects exist again.
func TestHold_ServerRestoredFromABackup(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"lists": false, "streams": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := kubetest.New(t, kubetest.InMemory())
				if streams {
					server.EnableWatchList()
				}
				ciliumNode := func(name string) *ciliumv2.CiliumNode {
					return &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
				}
				server.Put(node("one", "192.0.2.1"), node("two", "192.0.2.2"), ciliumNode("one"), ciliumNode("two"))
				r := follow(t, server, Settings{}, false)
				r.synced(t)
				backup := server.Backup()
				server.Put(node("three", "192.0.2.3"), node("four", "192.0.2.4"), ciliumNode("three"), ciliumNode("four"))
				r.becomesSame(t, server)

				server.Stop()
				server.Restore(backup)
				server.Start(t)
				has := func(table string, names ...string) bool {
					return slices.Equal(slices.Sorted(maps.Keys(r.keys(table))), slices.Sorted(slices.Values(names)))
				}
				all := []string{"one", "two", "three", "four"}
				for _, table := range []string{"k8s-nodes", "cilium-nodes"} {
					eventually(t, table+" are listed again", func() bool { return r.heldRows(table) == 2 })
					if !has(table, all...) {
						t.Errorf("%s: %v", table, r.keys(table))
					}
				}
				if level := r.level("nodes"); level != cell.StatusDegraded {
					t.Errorf("health of the nodes is %s", level)
				}
				server.Put(node("three", "192.0.2.3"), ciliumNode("three"))
				time.Sleep(holdTime - 30*time.Second)
				if !has("k8s-nodes", all...) || !has("cilium-nodes", all...) {
					t.Errorf("after some minutes: %v, %v", r.keys("k8s-nodes"), r.keys("cilium-nodes"))
				}
				time.Sleep(30 * time.Second)
				r.becomesSame(t, server)
				if !has("k8s-nodes", "one", "two", "three") {
					t.Errorf("in the end: %v", r.keys("k8s-nodes"))
				}
				eventually(t, "nothing is degraded", func() bool { return len(r.health.degraded()) == 0 })
			})
		})
	}
}

// TestRelist_RequestsNoOlderState: after the first list, each request asks for a state that is at least as new as the last known one, or for a quorum read.
// So a lagging replica of the API server rejects the request, and cannot remove nodes.
func TestRelist_RequestsNoOlderState(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"lists": false, "streams": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := kubetest.New(t, kubetest.InMemory())
				if streams {
					server.EnableWatchList()
				}
				server.Put(node("one", "192.0.2.1"))
				r := follow(t, server, Settings{}, false)
				r.synced(t)
				first := len(server.Requests())
				for i := range 3 {
					server.Put(node("two", fmt.Sprint("192.0.2.", 2+i)))
					r.becomesSame(t, server)
					server.Compact()
					server.CutWatches(t)
					time.Sleep(10 * time.Second)
				}
				again := 0
				for _, request := range server.Requests()[first:] {
					if request.Resource != kubeapi.Nodes.String() || request.Verb != "list" && request.Verb != "watch" {
						continue
					}
					if again++; strings.Contains(request.Query+"&", "resourceVersion=0&") {
						t.Errorf("%s of any state: %s", request.Verb, request.Query)
					}
				}
				if again < 3 {
					t.Errorf("%d requests", again)
				}
			})
		})
	}
}
