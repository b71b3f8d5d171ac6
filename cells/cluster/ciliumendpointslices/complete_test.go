package ciliumendpointslices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// Agents read slices once CompleteSlice exists, so all pods must be in slices by then. Continuous changes must not delay the creation of CompleteSlice.
func TestSlices_AllWritten_MarkedComplete(t *testing.T) {
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

// CompleteSlice waits for the pods of a slice that is emptied before its first write.
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

// A program that deletes all slices in the order of their list deletes CompleteSlice first. CompleteSlice must be created again after the other slices.
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

// CompleteSlice is removed before the other slices, so that agents have time to list CiliumEndpoints.
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

// Without the definition of the resource by Waggle, slices lack a field that agents need: CompleteSlice must never be created.
func TestSlices_NeedTheFieldOfWaggle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1))
		complete := &ciliumv2.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: ciliumv2.CompleteSlice, Labels: map[string]string{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs}}}
		server.Put(complete)
		server.Fault(func(q *http.Request) (int, string) { // stores only fields in the definition of another program
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
