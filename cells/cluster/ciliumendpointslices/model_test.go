package ciliumendpointslices

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// After random changes and faults, slices contain the state of all CiliumEndpoints, each pod once.
func TestSlices_Model(t *testing.T) {
	t.Parallel()
	for round := range 4 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			synctest.Test(t, func(t *testing.T) {
				server := kubetest.New(t, kubetest.InMemory())
				config := enabled(1 + random.IntN(6))
				r := start(t, server, config)
				pod := func() (string, string) { return []string{"a", "b"}[random.IntN(2)], fmt.Sprint("w", random.IntN(20)) }
				slice := func() (name string) {
					pods, _ := held(server)
					if names := slices.Sorted(maps.Keys(pods)); len(names) > 0 {
						name = names[random.IntN(len(names))]
					}
					return name
				}
				up := true
				steps := []func(){
					func() { namespace, name := pod(); server.Put(endpoint(namespace, name, 1+random.IntN(1000))) },
					func() { namespace, name := pod(); server.Put(endpoint(namespace, name, 1+random.IntN(1000))) },
					func() { namespace, name := pod(); server.Remove(kubeapi.CiliumEndpoints, namespace, name) },
					func() { server.Remove(kubeapi.CiliumEndpointSlices, "", slice()) },
					func() { time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond) },
					func() { r.lead(t, random.IntN(3) > 0) },
					server.Compact,
					func() {
						if up = !up; up {
							server.Start(t)
						} else {
							server.Stop()
						}
					},
					func() {
						fails := uint64(random.IntN(3))
						var asked atomic.Uint64
						server.Fault(func(q *http.Request) (int, string) {
							n := asked.Add(1) * 7 / 5
							if q.Method == http.MethodGet || n%3 >= fails {
								return 0, ""
							}
							return []int{http.StatusConflict, http.StatusInternalServerError, http.StatusNotFound}[n%5%3], ""
						})
					},
				}
				for range 300 {
					steps[random.IntN(len(steps))]()
				}
				server.Fault(nil)
				if !up {
					server.Start(t)
				}
				r.lead(t, true)
				time.Sleep(5 * time.Minute)
				want := map[string]int{}
				for _, object := range server.List(kubeapi.CiliumEndpoints) {
					o := object.(*ciliumv2.CiliumEndpoint)
					want[fmt.Sprintf("%s/%s=%d", o.Namespace, o.Name, o.Status.Identity.ID)]++
				}
				got := map[string]int{}
				pods, complete := held(server)
				for name, list := range pods {
					if len(list) == 0 || len(list) > config.Most {
						t.Errorf("slice %s has %d pods", name, len(list))
					}
					for _, p := range list {
						got[p]++
					}
				}
				if !maps.Equal(got, want) || !complete {
					_, health, _ := r.health.last()
					t.Errorf("slices hold %v, want %v; complete: %v; %s", got, want, complete, health)
				}
			})
		})
	}
}
