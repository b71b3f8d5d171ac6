package ciliumendpointslices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubeapi/kubetest"
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

// endpoint is the CiliumEndpoint of a pod, with an address of its own.
func endpoint(namespace, name string, n int) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{ciliumv2.NodeLabel: "two"}},
		Status: ciliumv2.EndpointStatus{Identity: &ciliumv2.EndpointIdentity{ID: int64(n)}, Networking: &ciliumv2.EndpointNetworking{Node: "192.0.2.2",
			Addressing: []ciliumv2.AddressPair{{IPv4: fmt.Sprintf("10.1.%d.%d", n/256, n%256)}}}}}
}

// replica is a cluster role against a server.
type replica struct {
	params
	leaders statedb.RWTable[leadership.Leadership]
	health  *cell.SimpleHealth
	reports atomic.Int64
	stop    func() // ends the job
}

// start runs the job of the cell as a job is run: it is tried again after an error.
func start(t *testing.T, server *kubetest.Server, c Config) *replica {
	t.Helper()
	set, err := newSettings(c)
	db := statedb.New()
	leaders, errLeaders := leadership.NewTable(db)
	if err := errors.Join(err, errLeaders); err != nil {
		t.Fatal(err)
	}
	_, health := cell.NewSimpleHealth()
	r := &replica{health: health, params: params{Log: slog.New(slog.DiscardHandler), DB: db, Leadership: leaders, Settings: set, Client: server.Client(t)}, leaders: leaders}
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
			if run(ctx, counting{health, &r.reports}) != nil {
				time.Sleep(retryMin)
			}
		}
	}()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// counting counts reports.
type counting struct {
	cell.Health
	n *atomic.Int64
}

func (c counting) OK(text string) { c.n.Add(1); c.Health.OK(text) }

func (c counting) Degraded(text string, err error) { c.n.Add(1); c.Health.Degraded(text, err) }

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

// held lists the slices of a server: by name, the pods as "namespace/name=identity".
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

func TestSlices_FollowCiliumEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("a", "w2", 2), endpoint("a", "w3", 3), endpoint("b", "w1", 4))
		none := endpoint("a", "no-address-yet", 9)
		none.Status.Networking = nil
		server.Put(none)
		start(t, server, enabled(2))
		settled()
		expect(t, server, "at first", "a/w1=1 a/w2=2; a/w3=3; b/w1=4; complete")
		before, _ := held(server)

		// Pods that change stay in their slice, and new ones fill it.
		server.Put(endpoint("a", "w1", 7), endpoint("a", "w4", 5))
		settled()
		expect(t, server, "after changes", "a/w1=7 a/w2=2; a/w3=3 a/w4=5; b/w1=4; complete")
		if after, _ := held(server); !maps.EqualFunc(before, after, func(a, b []string) bool { return a[0][:4] == b[0][:4] }) {
			t.Errorf("slices were %v, are %v", before, after)
		}

		// Empty slices are removed.
		server.Remove(kubeapi.CiliumEndpoints, "b", "w1")
		server.Remove(kubeapi.CiliumEndpoints, "a", "w2")
		settled()
		expect(t, server, "after removals", "a/w1=7; a/w3=3 a/w4=5; complete")
	})
}

// A new leader writes no slice that has its desired content. It deletes duplicates and orphans, and ignores slices of other programs.
func TestSlices_AreTakenOverByANewLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		for n := range 7 {
			server.Put(endpoint("a", fmt.Sprint("w", n), n+1))
		}
		first := start(t, server, enabled(3))
		settled()
		first.stop()
		before, written := shape(server), writes(server)
		if written != 4 { // three slices, and the one that calls them complete
			t.Errorf("the first leader made %d writes", written)
		}
		second := start(t, server, enabled(3))
		settled()
		if got := writes(server); got != written {
			t.Errorf("the second leader made %d writes", got-written)
		}
		expect(t, server, "with the second leader", before)

		// Changes without a leader.
		second.lead(t, false)
		settled()
		all, _ := held(server)
		names := slices.Sorted(maps.Keys(all))
		var doubled ciliumv2.CiliumEndpointSlice
		server.Get(kubeapi.CiliumEndpointSlices, "", names[0], &doubled)
		doubled.Name = "ces-left-by-another-leader"
		foreign := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-of-cilium"}, PodNamespace: "a", Endpoints: []ciliumv2.SlicedEndpoint{{Name: "w1", IdentityID: 99}}}
		orphan := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-orphan", Labels: doubled.Labels}, PodNamespace: "gone",
			Endpoints: []ciliumv2.SlicedEndpoint{{Name: "w1", IdentityID: 5, Origin: &ciliumv2.SliceOrigin{UID: "u"}}}}
		server.Put(&doubled, foreign, orphan)
		server.Remove(kubeapi.CiliumEndpoints, "a", "w6")
		second.lead(t, true)
		settled()
		pods, complete := held(server)
		if !complete || len(pods["ces-of-cilium"]) != 1 {
			t.Errorf("slices %v", pods)
		}
		delete(pods, "ces-of-cilium")
		seen := map[string]bool{}
		for _, list := range pods {
			for _, p := range list {
				if seen[p] {
					t.Errorf("%s is in two slices", p)
				}
				seen[p] = true
			}
		}
		if len(seen) != 6 {
			t.Errorf("slices hold %v", pods)
		}
	})
}

// Slices that another program changes, deletes or unlabels are written again.
func TestSlices_AreRepaired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("a", "w2", 2))
		start(t, server, enabled(10))
		settled()
		const want = "a/w1=1 a/w2=2; complete"
		expect(t, server, "at first", want)
		only := func() string {
			pods, _ := held(server)
			return slices.Collect(maps.Keys(pods))[0]
		}
		var o ciliumv2.CiliumEndpointSlice
		for what, change := range map[string]func(){
			"an endpoint is removed": func() { o.Endpoints = o.Endpoints[:1] },
			"an endpoint is changed": func() { o.Endpoints[0].IdentityID = 99 },
			"an endpoint is doubled": func() { o.Endpoints = append(o.Endpoints, o.Endpoints[0]) },
			"another namespace":      func() { o.PodNamespace = "b" },
		} {
			server.Get(kubeapi.CiliumEndpointSlices, "", only(), &o)
			change()
			server.Put(&o)
			settled()
			expect(t, server, what, want)
		}
		server.Remove(kubeapi.CiliumEndpointSlices, "", only())
		server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
		settled()
		expect(t, server, "all are deleted", want)

		former := only()
		server.Get(kubeapi.CiliumEndpointSlices, "", former, &o)
		o.Labels = nil
		server.Put(&o)
		settled()
		if pods, _ := held(server); len(pods) != 2 {
			t.Errorf("with one that is not ours any more: %v", pods)
		}
	})
}

// noGap holds that no pod is ever in no slice, once slices are complete, while its CiliumEndpoint stays. It looks before each request of the cluster role.
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

// Agents read slices as soon as they are called complete, so all pods must be in them by then, and changes that go on must not put that off.
func TestSlices_AreCalledCompleteWhenTheyAre(t *testing.T) {
	t.Parallel()
	for name, changes := range map[string]bool{"nothing changes": false, "pods change all the time": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := kubetest.New(t, kubetest.InMemory())
				for n := range 10 {
					server.Put(endpoint("a", fmt.Sprint("w", n), n+1))
				}
				config := enabled(2)
				config.Limits = `[{"nodes":0,"limit":1,"burst":1}]`
				start(t, server, config)
				for waited := range 300 {
					pods, complete := held(server)
					if all := slices.Concat(slices.Collect(maps.Values(pods))...); complete {
						if waited < 40 || len(all) != 10 {
							t.Errorf("after %d tenths of a second: %v", waited, pods)
						}
						return
					}
					if changes {
						server.Put(endpoint("a", fmt.Sprint("w", waited%10), 100+waited))
					}
					time.Sleep(100 * time.Millisecond)
				}
				t.Error("slices are not called complete")
			})
		})
	}
}

// Pods of a slice that is emptied before it was ever written are not forgotten.
func TestSlices_AreNotCompleteWhilePodsMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w0", 99))
		for n := range 8 {
			server.Put(endpoint("b", fmt.Sprint("w", n), n+1))
		}
		config := enabled(4)
		config.Limits = `[{"nodes":0,"limit":0.1,"burst":1}]`
		start(t, server, config)
		time.Sleep(15 * time.Second)
		expect(t, server, "at first", "a/w0=99; b/w0=1 b/w1=2 b/w2=3 b/w3=4")
		server.Put(endpoint("a", "w0", 100)) // is written before the slice that the last pod of the third one moves to
		for _, n := range []int{0, 1, 4, 5, 6} {
			server.Remove(kubeapi.CiliumEndpoints, "b", fmt.Sprint("w", n))
		}
		for range 600 {
			if pods, complete := held(server); complete {
				if all := slices.Concat(slices.Collect(maps.Values(pods))...); !slices.Contains(all, "b/w7=8") {
					t.Errorf("slices are called complete with %v", pods)
				}
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error("slices are not called complete")
	})
}

// The cluster role says what is late, also before slices are complete.
func TestSlices_ThatWaitLongAreReported(t *testing.T) {
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

// Who deletes all slices in the order of their list first deletes the one that calls them complete, and it comes back after the others.
func TestSlices_AreAllDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		for n := range 20 {
			server.Put(endpoint("a", fmt.Sprint("w", n), n+1))
		}
		start(t, server, enabled(1))
		settled()
		before := shape(server)
		check := func() {
			if pods, complete := held(server); complete && len(pods) != 20 {
				t.Errorf("%d slices are called complete", len(pods))
			}
		}
		var names []string
		for _, object := range server.List(kubeapi.CiliumEndpointSlices) {
			names = append(names, object.(*ciliumv2.CiliumEndpointSlice).Name)
		}
		slices.Sort(names)
		for _, name := range names {
			server.Remove(kubeapi.CiliumEndpointSlices, "", name)
			for range 20 {
				check()
				time.Sleep(100 * time.Millisecond)
			}
		}
		settled()
		expect(t, server, "afterwards", before)
	})
}

// One slice that the API server refuses does not hold up the others, has nothing listed again, and is tried again.
func TestSlices_ThatAreRefused(t *testing.T) {
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
		var refused string
		pods, _ := held(server)
		for name := range pods {
			if pods[name][0] == "a/w1=1" {
				refused = name
			}
		}
		var tries []time.Time
		before, code := lists(), http.StatusUnprocessableEntity
		server.Fault(func(q *http.Request) (int, string) {
			if q.Method != http.MethodPut || !strings.HasSuffix(q.URL.Path, refused) {
				return 0, ""
			}
			tries = append(tries, time.Now())
			return code, ""
		})
		server.Put(endpoint("a", "w1", 11))
		for n := range 100 {
			server.Put(endpoint("b", "w1", 100+n))
			time.Sleep(time.Second)
		}
		reports(t, r, cell.StatusDegraded, "1 slices to be written, 1 of them after a failure.*"+refused)
		code = http.StatusInternalServerError
		time.Sleep(20 * time.Minute)
		expect(t, server, "while one slice is refused", "a/w1=1; b/w1=199; complete")
		if n := len(tries); n < 20 || n > 30 || tries[1].Sub(tries[0]) > 2*time.Second {
			t.Errorf("%d attempts, %v", n, tries[:2])
		}
		if n := lists() - before; n > 0 {
			t.Errorf("%d lists", n)
		}
		server.Fault(nil)
		time.Sleep(2 * time.Minute)
		expect(t, server, "when it is not refused any more", "a/w1=11; b/w1=199; complete")
		reports(t, r, cell.StatusOK, "0 slices to be written")
	})
}

// A node that changes its pods all the time does not delay those of other nodes, and is named.
func TestSlices_OfANodeWithManyChanges(t *testing.T) {
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
		reports(t, r, cell.StatusDegraded, "changes of pods of 1 nodes come late, as each has more than 1 a second: restless")
		time.Sleep(2 * time.Minute)
		reports(t, r, cell.StatusOK, "302 pods in 302 slices, 0 slices to be written")
		pods, _ := held(server)
		if all := slices.Concat(slices.Collect(maps.Values(pods))...); !slices.Contains(all, fmt.Sprintf("a/x299=%d", 1+20*300+299)) {
			t.Error("the last changes are missing")
		}
	})
}

// Slices are bounded by the size of their entries, so that the API server takes them, and no pod of a usual size is left out, however many pods a slice may have.
func TestSlices_AreBoundedInSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		largest := int64(0)
		server.Fault(func(q *http.Request) (int, string) {
			largest = max(largest, q.ContentLength)
			return 0, ""
		})
		put := func(n, ports int) {
			o := endpoint("a", fmt.Sprintf("w%03d", n), n+1)
			for i := range ports {
				o.Status.NamedPorts = append(o.Status.NamedPorts, ciliumv2.NamedPort{Name: fmt.Sprintf("%080d", i), Port: uint16(1 + i), Protocol: "TCP"})
			}
			server.Put(o)
		}
		const pods = 300
		for n := range pods {
			put(n, n%20) // up to 3 kB
		}
		r := start(t, server, enabled(mostPods))
		check := func(what string, want int) {
			t.Helper()
			settled()
			held, complete := held(server)
			if all := slices.Concat(slices.Collect(maps.Values(held))...); len(held) != want || len(all) != pods || !complete {
				t.Errorf("%s: %d pods in %d slices, want %d; complete: %v", what, len(all), len(held), want, complete)
			}
			reports(t, r, cell.StatusOK, "0 slices to be written")
		}
		check("at first", 1)
		for n := range pods {
			put(n, 64) // all grow
		}
		check("when all have grown", 3)
		if largest > 3<<19 { // what etcd takes
			t.Errorf("an object of %d bytes was written", largest)
		}
	})
}

// A pod leaves a slice only when its new one has its present state: agents would take the former state for the present one.
func TestSlices_OfAMovedPodThatChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("a", "w2", 2))
		slice := func(name string) *ciliumv2.CiliumEndpointSlice { // what former leaders have left
			o := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, PodNamespace: "a"}
			describe(o)
			for _, object := range server.List(kubeapi.CiliumEndpoints) {
				sliced, err := k8sobjects.SlicedEndpoint(object.(*ciliumv2.CiliumEndpoint))
				if err != nil {
					t.Fatal(err)
				}
				o.Endpoints = append(o.Endpoints, sliced.Entry())
			}
			return o
		}
		server.Put(slice("ces-old"))
		server.Put(endpoint("a", "w1", 11))
		server.Put(slice("ces-written-later"))
		server.Fault(func(q *http.Request) (int, string) {
			if q.Method == http.MethodPut && strings.HasSuffix(q.URL.Path, "ces-old") {
				return http.StatusInternalServerError, ""
			}
			return 0, ""
		})
		start(t, server, enabled(10))
		settled()
		if pods, _ := held(server); !slices.Contains(pods["ces-written-later"], "a/w1=11") {
			t.Errorf("slices %v", pods)
		}
		server.Fault(nil)
		time.Sleep(2 * time.Minute)
		expect(t, server, "in the end", "a/w1=11 a/w2=2; complete")
	})
}

// An object that becomes malformed keeps its entry; one that is malformed from the beginning does not inherit that of a former object of its name.
func TestTakeEndpoint_Malformed(t *testing.T) {
	t.Parallel()
	set, err := newSettings(DefaultConfig)
	if err != nil {
		t.Fatal(err)
	}
	term := newTerm(params{Settings: set})
	take := func(uid, address string) {
		o := endpoint("a", "w", 1)
		o.UID, o.Status.Networking.Addressing[0].IPv4 = types.UID(uid), address
		e, err := term.readEndpoint(o)
		if err != nil {
			t.Fatal(err)
		}
		term.takeEndpoint(e, false)
	}
	take("first", "10.0.0.1")
	take("first", "x")
	if term.plan.pods["a/w"] == nil || len(term.leftOut) != 1 {
		t.Errorf("pods %v, left out %v", term.plan.pods, term.leftOut)
	}
	take("second", "x")
	if term.plan.pods["a/w"] != nil || len(term.leftOut) != 1 {
		t.Errorf("pods %v, left out %v", term.plan.pods, term.leftOut)
	}
}

// A slice that another leader has changed is not deleted because it had no pods before.
func TestSlices_ThatAnotherLeaderFills(t *testing.T) {
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

// However fast changes come, and however many CiliumEndpoints are malformed, a report takes place no more than once a second, and names few.
func TestSlices_AreReportedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		r := start(t, server, enabled(10))
		settled()
		before := r.reports.Load()
		for n := range 200 {
			o := endpoint("a", fmt.Sprintf("w%03d", 199-n), n+1)
			o.Status.Networking.Addressing[0].IPv4 = "x"
			server.Put(o)
			time.Sleep(10 * time.Millisecond)
		}
		settled()
		if n := r.reports.Load() - before; n < 1 || n > 4 {
			t.Errorf("%d reports in two seconds", n)
		}
		reports(t, r, cell.StatusDegraded, "(?s)changes of 200 CiliumEndpoints are left out.*a/w000.*a/w001.*a/w002")
	})
}

// reports holds that the health is at a level, and says what a pattern matches.
func reports(t *testing.T, r *replica, level cell.Level, pattern string) {
	t.Helper()
	if text := fmt.Sprint(r.health.Status, r.health.Error); r.health.Level != level || !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("health is %s, %q, want %s, %q", r.health.Level, text, level, pattern)
	}
}

// A slice that has become nearly empty is emptied into another one, and no pod is without a slice meanwhile.
func TestSlices_AreMerged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		for n := range 16 {
			server.Put(endpoint("a", fmt.Sprintf("w%02d", n), n+1))
		}
		start(t, server, enabled(8))
		settled()
		noGap(t, server)
		// Two pods of the second slice make room for the last two of the first one.
		for _, n := range []int{14, 15, 0, 1, 2, 3, 4, 5} {
			name := fmt.Sprintf("w%02d", n)
			server.Remove(kubeapi.CiliumEndpoints, "a", name)
			time.Sleep(400 * time.Millisecond)
		}
		settled()
		if pods, _ := held(server); len(pods) != 1 {
			t.Errorf("slices %v", pods)
		}
	})
}

// Writes come no faster than the rate for the size of the cluster, and changes that come meanwhile take no writes of their own.
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

// Agents that read slices list CiliumEndpoints before the slices are removed.
func TestSlices_AreRemovedWhenTheOptionIsOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1))
		on := start(t, server, enabled(10))
		settled()
		on.stop()
		foreign := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-of-cilium"}, PodNamespace: "a", Endpoints: []ciliumv2.SlicedEndpoint{{Name: "x", IdentityID: 99}}}
		server.Put(foreign)
		start(t, server, DefaultConfig)
		time.Sleep(graceTime - time.Minute)
		expect(t, server, "in the grace time", "a/w1=1; a/x=99")
		time.Sleep(2 * time.Minute)
		expect(t, server, "afterwards", "a/x=99")
	})
}

// Without the definition of Waggle slices lack what agents need to believe them: they are never called complete.
func TestSlices_NeedTheFieldOfWaggle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1))
		complete := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: ciliumv2.CompleteSlice, Labels: map[string]string{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs}}}
		server.Put(complete)
		server.Fault(func(q *http.Request) (int, string) { // stores what the definition of another program knows
			var o ciliumv2.CiliumEndpointSlice
			if q.Method != http.MethodPost && q.Method != http.MethodPut {
				return 0, ""
			}
			text, err := io.ReadAll(q.Body)
			if err == nil {
				err = json.Unmarshal(text, &o)
			}
			for i := range o.Endpoints {
				o.Endpoints[i].Origin = nil
			}
			server.Put(&o)
			server.Get(kubeapi.CiliumEndpointSlices, "", o.Name, &o)
			text, errStored := json.Marshal(&o)
			if err := errors.Join(err, errStored); err != nil {
				t.Error(err)
			}
			return http.StatusOK, string(text)
		})
		r := start(t, server, enabled(10))
		time.Sleep(5 * time.Minute)
		expect(t, server, "with a definition of another program", "a/w1=1")
		reports(t, r, cell.StatusDegraded, "drops the field waggle of CiliumEndpointSlices")
		if n := writes(server); n > 20 {
			t.Errorf("%d writes in five minutes", n)
		}
		server.Fault(nil)
		time.Sleep(2 * time.Minute)
		expect(t, server, "when the definition is mended", "a/w1=1; complete")
		reports(t, r, cell.StatusOK, "0 slices to be written")
	})
}
