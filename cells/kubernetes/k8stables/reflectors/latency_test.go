package reflectors

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// slice returns an EndpointSlice with one endpoint for each set of conditions.
func slice(conditions ...discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
	port, protocol := int32(8080), corev1.ProtocolTCP
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web-4", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}}}
	for i, c := range conditions {
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{[]string{"10.1.0.1", "10.1.0.2"}[i]}, Conditions: c})
	}
	return o
}

// TestEvents_InTableWithin20Milliseconds changes an EndpointSlice when its backends terminate, one by one and in a burst. An agent that
// learns later of a terminating backend sends it new connections meanwhile.
func TestEvents_InTableWithin20Milliseconds(t *testing.T) {
	t.Parallel()
	const step = 2 * time.Millisecond
	const limit = 20 * time.Millisecond // two commits of a table
	synctest.Test(t, func(t *testing.T) {
		yes, no := true, false
		ready := discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
		ending := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		silent := discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("one", "192.0.2.1"), slice(ready, ready))
		r := followWith(t, server.Client(t), Settings{CopyEvery: time.Hour}, false)
		r.synced(t)
		r.becomesSame(t, server)
		inTime := func(what string) {
			t.Helper()
			time.Sleep(limit)
			synctest.Wait()
			if err := r.same(server, "one"); err != nil {
				t.Errorf("%s: after %v the table is behind: %v", what, limit, err)
			}
		}
		for range 3 {
			server.Put(slice(ready, ending))
			inTime("a server ends")
			server.Put(slice(ready, silent))
			inTime("it serves no more")
			server.Put(slice(ready))
			inTime("its pod is gone")
			for i := int32(1); i <= 100; i++ {
				burst := slice(ready, ending)
				*burst.Ports[0].Port = i
				server.Put(burst)
				time.Sleep(step)
				synctest.Wait()
				var row k8s.EndpointSlice
				if err := json.Unmarshal([]byte(r.keys("k8s-endpointslices")["a/web-4"]), &row); err != nil {
					t.Fatal(err)
				}
				if late := time.Duration(i-int32(row.Ports[0].Port)) * step; late > limit {
					t.Fatalf("in a burst the table is %v behind, want %v at most", late, limit)
				}
			}
			server.Put(slice(ready, ending))
			inTime("a burst ends")
			server.Remove(kubeapi.EndpointSlices, "a", "web-4")
			inTime("the Service is gone")
			time.Sleep(time.Minute) // without an event
		}
	})
}

// TestEvents_Sustained_AreGathered changes an EndpointSlice for five seconds: the commits become fewer, and the table is at most one pause behind.
func TestEvents_Sustained_AreGathered(t *testing.T) {
	t.Parallel()
	const step, limit = 5 * time.Millisecond, sustainedInterval + 10*time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		yes := true
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("one", "192.0.2.1"), slice(discoveryv1.EndpointConditions{Ready: &yes}))
		r := followWith(t, server.Client(t), Settings{CopyEvery: time.Hour}, false)
		r.synced(t)
		time.Sleep(time.Minute) // all commits of the start are over
		commits, seen := 0, int32(8080)
		for i := int32(1); i <= 1000; i++ {
			o := slice(discoveryv1.EndpointConditions{Ready: &yes})
			*o.Ports[0].Port = i
			server.Put(o)
			time.Sleep(step)
			synctest.Wait()
			var row k8s.EndpointSlice
			if err := json.Unmarshal([]byte(r.keys("k8s-endpointslices")["a/web-4"]), &row); err != nil {
				t.Fatal(err)
			}
			now := int32(row.Ports[0].Port)
			if now != seen {
				commits, seen = commits+1, now
			}
			if late := time.Duration(i-now) * step; late > limit {
				t.Fatalf("the table is %v behind, want %v at most", late, limit)
			}
		}
		if most := commitBurst + int(1000*step/sustainedInterval) + 1; commits > most {
			t.Errorf("%d commits, want %d at most", commits, most)
		}
	})
}
