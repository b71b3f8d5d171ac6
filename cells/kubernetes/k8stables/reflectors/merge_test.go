package reflectors

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// endpointOn returns the CiliumEndpoint that a node wrote for a pod.
func endpointOn(node, name string, n int) *ciliumv2.CiliumEndpoint {
	o := endpoint(name, n)
	o.Labels = map[string]string{ciliumv2.NodeLabel: node}
	return o
}

// sliceOf returns a slice of CiliumEndpoints that a server has.
func sliceOf(t testing.TB, server *kubetest.Server, name string, pods ...string) *ciliumv2.CiliumEndpointSlice {
	t.Helper()
	slice := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs}}, PodNamespace: "a",
		Endpoints: []ciliumv2.SlicedEndpoint{}}
	for _, pod := range pods {
		var o ciliumv2.CiliumEndpoint
		if !server.Get(kubeapi.CiliumEndpoints, "a", pod, &o) {
			t.Fatalf("there is no CiliumEndpoint %s", pod)
		}
		sliced, err := k8sobjects.SlicedEndpoint(&o)
		if err != nil {
			t.Fatal(err)
		}
		slice.Endpoints = append(slice.Endpoints, sliced.Entry())
	}
	return slice
}

// stay fails the test if the table lacks one of the pods after it had all of them. It sees each commit: virtual time passes only while stay waits,
// and two commits are [mergeSettle] apart.
func (r *rig) stay(t testing.TB, pods ...string) {
	t.Helper()
	table := r.table(remoteTable)
	missing := func() string {
		txn := r.DB.ReadTxn()
		for _, pod := range pods {
			if _, found := table.Get(txn, "a/"+pod); !found {
				return pod
			}
		}
		return ""
	}
	eventually(t, "all pods are there", func() bool { return missing() == "" })
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := table.Changed(r.DB.ReadTxn())
			if pod := missing(); pod != "" {
				t.Errorf("pod %s was missing", pod)
				return
			}
			select {
			case <-stop:
				return
			case <-changed:
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// identity returns the identity of a pod in the table; 0 without a row.
func (r *rig) identity(pod string) uint32 {
	row, found := r.table(remoteTable).Get(r.DB.ReadTxn(), "a/"+pod)
	if !found {
		return 0
	}
	return row.(*cilium.Endpoint).Identity()
}

func (r *rig) has(t testing.TB, pod string, identity uint32) {
	t.Helper()
	eventually(t, fmt.Sprintf("pod %s has identity %d", pod, identity), func() bool { return r.identity(pod) == identity })
}

// everything reports whether all CiliumEndpoints are followed.
func (r *rig) everything() bool { return r.source("cilium-endpoints-listed").State == sources.Synced }

// whole counts the requests for the CiliumEndpoints of all nodes.
func whole(server *kubetest.Server) (n int) {
	for _, q := range server.Requests() {
		if q.Resource == kubeapi.CiliumEndpoints.String() && !strings.Contains(q.Query, "labelSelector") {
			n++
		}
	}
	return n
}

func cluster(t testing.TB, options ...kubetest.Option) *kubetest.Server {
	t.Helper()
	server := kubetest.New(t, append(options, kubetest.InMemory())...)
	server.Put(endpointOn("one", "mine", 1), endpointOn("two", "w2", 2), endpointOn("two", "w3", 3), endpointOn("three", "w4", 4))
	return server
}

// An agent that reads slices has the same rows as an agent that reads CiliumEndpoints, and never requests all CiliumEndpoints.
func TestSlices_ProduceRowsOfCiliumEndpoints(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"lists": false, "streams": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := cluster(t)
				if streams {
					server.EnableWatchList()
				}
				server.Put(sliceOf(t, server, "s1", "mine", "w2"), sliceOf(t, server, "s2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
				r := follow(t, server, Settings{Slices: true}, false)
				r.synced(t)
				r.becomesSame(t, server)
				server.Put(endpointOn("two", "w2", 22), endpointOn("two", "w5", 5), endpointOn("one", "mine", 11))
				server.Remove(kubeapi.CiliumEndpoints, "a", "w3")
				server.Put(sliceOf(t, server, "s1", "mine", "w2", "w5"), sliceOf(t, server, "s2", "w4"))
				r.becomesSame(t, server)
				server.Remove(kubeapi.CiliumEndpoints, "a", "w4")
				server.Remove(kubeapi.CiliumEndpointSlices, "", "s2")
				r.becomesSame(t, server)
				if n := whole(server); n > 0 {
					t.Errorf("%d requests for all CiliumEndpoints", n)
				}
				time.Sleep(lagLimit + 2*tick)
				if problems := r.health.degraded(); len(problems) > 0 {
					t.Errorf("health: %q", problems)
				}
				if done, _ := r.table(remoteTable).Initialized(r.DB.ReadTxn()); !done {
					t.Error("the table is not initialized")
				}
			})
		})
	}
}

// A pod that the cluster role moves is in two slices for a while: the slice that was written last is preferred.
func TestSlices_PodInTwoSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "w2", "w3"), sliceOf(t, server, "s2", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		r.stay(t, "mine", "w2", "w3", "w4")
		server.Put(endpointOn("two", "w2", 20))
		server.Put(sliceOf(t, server, "s2", "w2", "w4"))
		r.has(t, "w2", 20)
		server.Put(sliceOf(t, server, "s3", "w2"))
		server.Put(endpointOn("two", "w2", 21))
		server.Put(sliceOf(t, server, "s2", "w2", "w4"))
		r.has(t, "w2", 21)
		server.Put(sliceOf(t, server, "s1", "w3"))
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s3")
		time.Sleep(time.Second)
		r.has(t, "w2", 21)
		r.becomesSame(t, server)
	})
}

// The preferred slice does not depend on previous rows: an agent that starts now has the same rows.
func TestSlices_PodInTwoSlices_LastWriteWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		previous := sliceOf(t, server, "s1", "w2", "w3")
		server.Put(previous, sliceOf(t, server, "s3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		server.Put(endpointOn("two", "w2", 22))
		server.Put(sliceOf(t, server, "s2", "w2"))
		r.has(t, "w2", 22)
		previous.Endpoints = previous.Endpoints[:1] // the entry of w2 is unchanged
		server.Put(previous)
		again := follow(t, server, Settings{Slices: true}, false)
		again.synced(t)
		again.has(t, "w2", 2)
		r.has(t, "w2", 2)
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s1")
		r.has(t, "w2", 22)
		again.has(t, "w2", 22)
	})
}

// Rows of pods of this node come from its CiliumEndpoints, even if slices differ.
func TestSlices_LocalPods_AreIgnored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(endpointOn("two", "moves", 5))
		server.Put(sliceOf(t, server, "s1", "mine", "moves"), sliceOf(t, server, "s2", "w2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		r.becomesSame(t, server)

		// A pod of a StatefulSet moves to this node, and slices lag.
		server.Remove(kubeapi.CiliumEndpoints, "a", "moves")
		server.Put(endpointOn("one", "moves", 6))
		r.has(t, "moves", 6)
		time.Sleep(lagLimit + 2*tick)
		if text := fmt.Sprint(r.health.degraded()); !strings.Contains(text, "lack 1 pods of this node") {
			t.Errorf("health: %s", text)
		}
		server.Put(sliceOf(t, server, "s1", "mine", "moves"))
		time.Sleep(2 * tick)
		if problems := r.health.degraded(); len(problems) > 0 {
			t.Errorf("health: %q", problems)
		}
		// The pod leaves: a slice that still has it as a pod of this node adds no row.
		server.Remove(kubeapi.CiliumEndpoints, "a", "moves")
		r.has(t, "moves", 0)
		server.Put(endpointOn("two", "moves", 7))
		server.Put(sliceOf(t, server, "s2", "w2", "w3", "w4", "moves"))
		r.has(t, "moves", 7)
		// The pod moves to this node and leaves before slices have shown either.
		server.Put(endpointOn("one", "moves", 8))
		r.has(t, "moves", 8)
		server.Remove(kubeapi.CiliumEndpoints, "a", "moves")
		r.has(t, "moves", 7)
	})
}

// A slice without the field waggle removes no rows.
func TestSlices_WithoutWaggleField_RemoveNoRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "mine", "w2"), sliceOf(t, server, "s2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		path := filepath.Join(t.TempDir(), "k8s-snapshot")
		r := follow(t, server, Settings{Slices: true, Copy: path}, false)
		r.synced(t)
		r.stay(t, "mine", "w2", "w3", "w4")
		lost := sliceOf(t, server, "s2", "w3", "w4")
		lost.Endpoints[0].Origin, lost.Endpoints[1].Origin = nil, nil
		server.Put(lost)
		rejected := func(r *rig) {
			t.Helper()
			eventually(t, "it is rejected", func() bool { return r.level("cilium-endpointslices") == cell.StatusDegraded })
		}
		rejected(r)
		r.becomesSame(t, server)
		if whole(server) > 0 {
			t.Error("all CiliumEndpoints are listed although the last state of the slice stays")
		}

		// A restarted agent has no last good state of the slice.
		r.stop()
		again := follow(t, server, Settings{Slices: true, Copy: path}, false)
		again.stay(t, "mine", "w2", "w3", "w4")
		rejected(again)
		again.synced(t)
		again.becomesSame(t, server)
		server.Put(endpointOn("two", "w3", 33))
		again.has(t, "w3", 33)
		server.Put(sliceOf(t, server, "s2", "w3", "w4"))
		eventually(t, "CiliumEndpoints of others are not followed any more", func() bool { return !again.everything() })
		again.becomesSame(t, server)
	})
}

// An agent may be newer than the permissions and the definitions in the cluster.
func TestSlices_CannotBeListed(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string]func(*kubetest.Server){
		"no right": func(s *kubetest.Server) { s.Deny("list", kubeapi.CiliumEndpointSlices) },
		"no definition": func(s *kubetest.Server) {
			s.Fault(func(q *http.Request) (int, string) {
				if strings.HasSuffix(q.URL.Path, "ciliumendpointslices") {
					return http.StatusNotFound, ""
				}
				return 0, ""
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := cluster(t)
				deny(server)
				r := follow(t, server, Settings{Slices: true, SyncTimeout: time.Minute}, false)
				time.Sleep(2 * slicesTimeout)
				r.synced(t)
				r.becomesSame(t, server)
				select {
				case <-r.ended:
					t.Error("the agent ended")
				default:
				}
			})
		})
	}
}

// If the name of a node is longer than a label value may be, the node cannot select its own CiliumEndpoints, and it reads all of them.
func TestSlices_OnANodeWithALongName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "w2"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true, NodeName: strings.Repeat("a-long-name.", 6) + "example"}, false)
		r.synced(t)
		for n, pod := range []string{"mine", "w2", "w3", "w4"} {
			r.has(t, pod, uint32(n+1))
		}
		if problems := r.health.degraded(); len(problems) > 0 {
			t.Errorf("health: %q", problems)
		}
	})
}

// After random changes of slices and CiliumEndpoints, the table has the rows of their final state.
func TestSlices_Model(t *testing.T) {
	t.Parallel()
	for round := range 5 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			synctest.Test(t, func(t *testing.T) { sliceModel(t, random) })
		})
	}
}

func sliceModel(t *testing.T, random *rand.Rand) {
	server := cluster(t)
	r := follow(t, server, Settings{Slices: true}, false)
	some := func() (list []string) {
		for _, object := range server.List(kubeapi.CiliumEndpoints) {
			if random.IntN(2) == 0 {
				list = append(list, object.(*ciliumv2.CiliumEndpoint).Name)
			}
		}
		return list
	}
	up := true
	steps := []func(){
		func() {
			name, node := fmt.Sprint("p", random.IntN(8)), []string{"one", "two", "three"}[random.IntN(3)]
			server.Put(endpointOn(node, name, 1+random.IntN(1000)))
		},
		func() { server.Remove(kubeapi.CiliumEndpoints, "a", fmt.Sprint("p", random.IntN(8))) },
		func() { server.Put(sliceOf(t, server, fmt.Sprint("s", random.IntN(4)), some()...)) },
		func() { server.Put(sliceOf(t, server, fmt.Sprint("s", random.IntN(4)), some()...)) },
		func() { server.Remove(kubeapi.CiliumEndpointSlices, "", fmt.Sprint("s", random.IntN(4))) },
		func() { server.Put(sliceOf(t, server, ciliumv2.CompleteSlice)) },
		func() {
			if random.IntN(3) == 0 {
				server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
			}
		},
		func() {
			if up = !up; up {
				server.Start(t)
			} else {
				server.Stop()
			}
		},
		server.Compact,
		func() { time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond) },
		func() { time.Sleep(time.Duration(random.IntN(20)) * time.Second) },
	}
	for range 300 {
		steps[random.IntN(len(steps))]()
	}
	if !up {
		server.Start(t)
	}
	for _, complete := range []bool{true, false, true} {
		if server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice); complete {
			server.Put(sliceOf(t, server, ciliumv2.CompleteSlice))
		}
		time.Sleep(2 * time.Minute)
		want := map[string]uint32{}
		written := map[string]uint64{}
		if complete {
			for _, object := range server.List(kubeapi.CiliumEndpointSlices) {
				o := object.(*ciliumv2.CiliumEndpointSlice)
				version, _ := strconv.ParseUint(o.ResourceVersion, 10, 64)
				for _, e := range o.Endpoints {
					if key := "a/" + e.Name; e.Origin.Node != "one" && version > written[key] {
						want[key], written[key] = uint32(e.IdentityID), version
					}
				}
			}
		}
		for _, object := range server.List(kubeapi.CiliumEndpoints) {
			if o := object.(*ciliumv2.CiliumEndpoint); o.Labels[ciliumv2.NodeLabel] == "one" || !complete {
				want["a/"+o.Name] = uint32(o.Status.Identity.ID)
			}
		}
		got := map[string]uint32{}
		for row := range r.table(remoteTable).All(r.DB.ReadTxn()) {
			got[row.Key()] = row.(*cilium.Endpoint).Identity()
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("complete %v: rows %v, want %v", complete, got, want)
		}
	}
}
