package ciliumendpointslices

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

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

		// Changed pods stay in their slice, and new pods are added to it.
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
func TestSlices_NewLeader_ReusesSlices(t *testing.T) {
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
		if written != 4 { // three slices and CompleteSlice
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

		sliceName := only()
		server.Get(kubeapi.CiliumEndpointSlices, "", sliceName, &o)
		o.Labels = nil
		server.Put(&o)
		settled()
		if pods, _ := held(server); len(pods) != 2 {
			t.Errorf("with one that is not ours any more: %v", pods)
		}
	})
}

// The size of the entries of a slice is limited, so that the API server accepts the object, and no pod with an entry of usual size is left out, also if a slice
// may have 1000 pods.
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
		if largest > 3<<19 { // limit of etcd
			t.Errorf("an object of %d bytes was written", largest)
		}
	})
}

// ofAll creates a slice of a previous leader with all pods.
func ofAll(t *testing.T, server *kubetest.Server, name string) *ciliumv2.CiliumEndpointSlice {
	t.Helper()
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

// A moved pod with continuous changes is removed from its previous slice: agents prefer the slice that was written later.
func TestSlices_MovedPodWithContinuousChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("a", "w2", 2))
		server.Put(ofAll(t, server, "ces-old"), ofAll(t, server, "ces-written-later"))
		config := enabled(10)
		config.Limits = `[{"nodes":0,"limit":1,"burst":1}]`
		start(t, server, config)
		for n := range 200 {
			server.Put(endpoint("a", "w1", 100+n))
			time.Sleep(100 * time.Millisecond)
		}
		if pods, _ := held(server); len(pods) != 1 {
			t.Errorf("slices %v", pods)
		}
	})
}

// A moved pod is removed from its previous slice only when the new slice contains the current state: otherwise agents would take the old state for the current
// one.
func TestSlices_MovedPodWithChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("a", "w1", 1), endpoint("a", "w2", 2))
		slice := func(name string) *ciliumv2.CiliumEndpointSlice { return ofAll(t, server, name) }
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

// An object that becomes malformed keeps its entry. A new malformed object does not inherit the entry of a previous object with its name.
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

// The pods of a nearly empty slice are moved to another slice, and each pod is in a slice all the time.
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
		// The removal of two pods of the second slice creates capacity for the last two pods of the first slice.
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
