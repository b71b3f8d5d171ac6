package ciliumendpointslices

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// The cluster role reports late writes, also before CompleteSlice exists.
func TestSlices_LateWrites_AreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		put := func(n, identity int) {
			o := endpoint("a", fmt.Sprint("w", n), identity)
			o.Labels[ciliumv2.NodeLabel] = fmt.Sprint("node-", n)
			server.Put(o)
		}
		for n := range 100 {
			put(n, n+1)
		}
		config := enabled(1)
		config.Limits = `[{"nodes":0,"limit":1,"burst":1}]`
		r := start(t, server, config)
		time.Sleep(50 * time.Second)
		reports(t, r, cell.StatusOK, "slices to be written")
		time.Sleep(20 * time.Second)
		reports(t, r, cell.StatusDegraded, "agents read CiliumEndpoints until 3[0-9] slices have been written once")
		time.Sleep(time.Minute)
		reports(t, r, cell.StatusOK, "100 pods in 100 slices, 0 slices to be written")
		for n := range 100 {
			put(n, n+101)
		}
		time.Sleep(70 * time.Second)
		reports(t, r, cell.StatusDegraded, "changes of pods reach other nodes late")
	})
}

// A slice that the API server rejects does not delay other slices, does not cause new lists, and is retried.
func TestSlices_RejectedSlice_DelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("b", "w1", 2))
		r := start(t, server, enabled(10))
		settled()
		expect(t, server, "at first", "a/w1=1; b/w1=2; complete")
		lists := func() (n int) {
			for _, q := range server.Requests() {
				if q.Verb == "list" {
					n++
				}
			}
			return n
		}
		var rejected string
		pods, _ := held(server)
		for name := range pods {
			if pods[name][0] == "a/w1=1" {
				rejected = name
			}
		}
		var mu sync.Mutex // guards the following variables
		var tries []time.Time
		before, code := lists(), http.StatusUnprocessableEntity
		server.Fault(func(q *http.Request) (int, string) {
			if q.Method != http.MethodPut || !strings.HasSuffix(q.URL.Path, rejected) {
				return 0, ""
			}
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Now())
			return code, ""
		})
		server.Put(endpoint("a", "w1", 11))
		for n := range 100 {
			server.Put(endpoint("b", "w1", 100+n))
			time.Sleep(time.Second)
		}
		reports(t, r, cell.StatusDegraded, "[12] slices to be written, 1 of them after a failure.*"+rejected)
		mu.Lock()
		code = http.StatusInternalServerError
		mu.Unlock()
		time.Sleep(20 * time.Minute)
		expect(t, server, "while one slice is refused", "a/w1=1; b/w1=199; complete")
		mu.Lock()
		if n := len(tries); n < 20 || n > 30 || tries[1].Sub(tries[0]) > 2*time.Second {
			t.Errorf("%d attempts, %v", n, tries[:2])
		}
		mu.Unlock()
		if n := lists() - before; n > 0 {
			t.Errorf("%d lists", n)
		}
		server.Fault(nil)
		time.Sleep(2 * time.Minute)
		expect(t, server, "when it is not refused any more", "a/w1=11; b/w1=199; complete")
		reports(t, r, cell.StatusOK, "0 slices to be written")
	})
}

// Continuous changes of the pods of one node do not delay changes of other nodes, and the report names the node.
func TestSlices_ManyChangesOfOneNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		config := enabled(1)
		config.Limits = `[{"nodes":0,"limit":4,"burst":4}]`
		flood := func(n int) {
			for i := range 300 {
				o := endpoint("a", fmt.Sprint("x", i), 1+n*300+i)
				o.Labels[ciliumv2.NodeLabel] = "restless"
				server.Put(o)
			}
		}
		server.Put(endpoint("a", "w", 1), endpoint("b", "w", 1))
		flood(0)
		r := start(t, server, config)
		time.Sleep(2 * time.Minute)
		for n := 1; n <= 20; n++ { // for 96 s
			flood(n)
			if n > 5 { // the budget is used up
				server.Put(endpoint("a", "w", n), endpoint("b", "w", n))
			}
			time.Sleep(4800 * time.Millisecond)
			if pods, _ := held(server); n > 5 {
				all := slices.Concat(slices.Collect(maps.Values(pods))...)
				if !slices.Contains(all, fmt.Sprintf("a/w=%d", n)) || !slices.Contains(all, fmt.Sprintf("b/w=%d", n)) {
					t.Errorf("after %d rounds changes of another node are late", n)
				}
			}
		}
		reports(t, r, cell.StatusDegraded, "changes of pods of 1 nodes are delayed because each node has more than 1 per second: restless")
		time.Sleep(2 * time.Minute)
		reports(t, r, cell.StatusOK, "302 pods in 302 slices, 0 slices to be written")
		pods, _ := held(server)
		if all := slices.Concat(slices.Collect(maps.Values(pods))...); !slices.Contains(all, fmt.Sprintf("a/x299=%d", 1+20*300+299)) {
			t.Error("the last changes are missing")
		}
	})
}

// A slice that another leader has filled is not deleted, although it was empty in the last known state.
func TestSlices_FilledByOtherLeader_AreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1))
		start(t, server, enabled(10))
		settled()
		var o ciliumv2.CiliumEndpointSlice
		pods, _ := held(server)
		server.Get(kubeapi.CiliumEndpointSlices, "", slices.Collect(maps.Keys(pods))[0], &o)
		filled := false
		server.Fault(func(q *http.Request) (int, string) {
			if q.Method == http.MethodDelete && !filled {
				filled = true
				o.Endpoints[0].Name = "w2"
				server.Put(endpoint("a", "w2", 1), &o)
			} else if filled && !server.Get(kubeapi.CiliumEndpointSlices, "", o.Name, nil) {
				t.Errorf("slice %s was deleted", o.Name)
				filled = false
			}
			return 0, ""
		})
		server.Remove(kubeapi.CiliumEndpoints, "a", "w1")
		settled()
		expect(t, server, "in the end", "a/w2=1; complete")
		if !filled {
			t.Error("nothing was to be deleted")
		}
	})
}

// After a restore of etcd behind running API servers, slices have lower versions than before. They are written, whether clients list them again or not.
func TestSlices_RestoredServer_AreWritten(t *testing.T) {
	t.Parallel()
	for name, lists := range map[string]bool{"watches continue": false, "watches end": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := kubetest.New(t, kubetest.InMemory())
				server.Put(endpoint("a", "w1", 1))
				start(t, server, enabled(10))
				settled()
				backup := server.Backup()
				server.Put(endpoint("a", "w1", 2))
				settled()
				expect(t, server, "before the restore", "a/w1=2; complete")

				server.Restore(backup)
				synctest.Wait()
				if before := writes(server); lists {
					server.Compact()
					settled()
					if n := writes(server) - before; n > 0 {
						t.Errorf("%d writes of the restored slice, which has the restored pod", n)
					}
				}
				before := writes(server)
				server.Put(endpoint("a", "w1", 3))
				settled()
				expect(t, server, "after the restore", "a/w1=3; complete")
				if n := writes(server) - before; n > 2 { // one that is rejected, and its retry
					t.Errorf("%d writes of one change", n)
				}
			})
		})
	}
}

// A report is made at most once per second and names at most three objects, also with fast changes and many malformed CiliumEndpoints.
func TestSlices_ReportsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		r := start(t, server, enabled(10))
		settled()
		_, _, before := r.health.last()
		for n := range 200 {
			o := endpoint("a", fmt.Sprintf("w%03d", 199-n), n+1)
			o.Status.Networking.Addressing[0].IPv4 = "x"
			server.Put(o)
			time.Sleep(10 * time.Millisecond)
		}
		settled()
		_, _, now := r.health.last()
		if n := now - before; n < 1 || n > 4 {
			t.Errorf("%d reports in two seconds", n)
		}
		reports(t, r, cell.StatusDegraded, "(?s)changes of 200 CiliumEndpoints are in no slice.*a/w000.*a/w001.*a/w002")
	})
}

// The rate of writes stays within the limit for the size of the cluster, and changes between two writes of a slice share one write.
func TestSlices_AreWrittenWithinTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		config := enabled(100)
		config.Limits = `[{"nodes":2,"limit":1,"burst":1},{"nodes":0,"limit":10,"burst":20}]`
		elsewhere := endpoint("a", "w0", 1)
		elsewhere.Labels[ciliumv2.NodeLabel] = "three"
		server.Put(elsewhere, endpoint("a", "w1", 2))
		start(t, server, config)
		settled()
		before := writes(server)
		for n := range 100 { // in ten seconds
			server.Put(endpoint("a", fmt.Sprint("w", 2+n%50), 3+n))
			time.Sleep(100 * time.Millisecond)
		}
		if n := writes(server) - before; n < 8 || n > 12 {
			t.Errorf("%d writes in ten seconds", n)
		}
	})
}
