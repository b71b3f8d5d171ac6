package servicecontroller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// owned returns the kind, the owner and the id of each frontend, by address.
func (b *bench) owned() map[loadbalancer.Address]string {
	all := map[loadbalancer.Address]string{}
	for f := range b.c.Frontends.All(b.db.ReadTxn()) {
		all[f.Address] = fmt.Sprint(f.Kind, " of ", f.Service, ", id ", f.ID)
	}
	return all
}

// firstPass makes the passes that are due, and compares each of their commits with the last one: an address that has an owner in between keeps this owner. It
// returns the number of addresses after each commit.
func (b *bench) firstPass() (sizes []int) {
	b.t.Helper()
	var all []map[loadbalancer.Address]string
	b.commits.onCommit = func() { all = append(all, b.owned()) }
	b.step()
	b.commits.onCommit = nil
	final := b.owned()
	for i, one := range all {
		sizes = append(sizes, len(one))
		for _, a := range slices.SortedFunc(maps.Keys(one), loadbalancer.Address.Compare) {
			if one[a] != final[a] {
				b.t.Errorf("commit %d of %d: %s is %s, and in the end %q", i+1, len(all), a, one[a], final[a])
			}
		}
	}
	return sizes
}

// stepWithoutGaps makes the passes that are due, and checks each of their commits: an address belongs to its owner before the passes or to its owner after
// them, and an address that has an owner before and after has one in each commit. It returns the number of commits.
func (b *bench) stepWithoutGaps() int {
	b.t.Helper()
	before := b.owned()
	var all []map[loadbalancer.Address]string
	b.commits.onCommit = func() { all = append(all, b.owned()) }
	b.step()
	b.commits.onCommit = nil
	final := b.owned()
	for i, one := range all {
		for _, a := range slices.SortedFunc(maps.Keys(one), loadbalancer.Address.Compare) {
			if one[a] != before[a] && one[a] != final[a] {
				b.t.Errorf("commit %d of %d: %s is %s, before %q, and in the end %q", i+1, len(all), a, one[a], before[a], final[a])
			}
		}
		for a := range before {
			if final[a] != "" && one[a] == "" {
				b.t.Errorf("commit %d of %d: no service has %s, before %q, and in the end %q", i+1, len(all), a, before[a], final[a])
			}
		}
	}
	return len(all)
}

func ips(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// TestFirstPass_AddressNeverHasWrongOwner: services at the start of the list claim addresses that later services get.
func TestFirstPass_AddressNeverHasWrongOwner(t *testing.T) {
	t.Parallel()
	first := func(change func(*k8s.Service)) *k8s.Service {
		s := &k8s.Service{Namespace: "aaa", Name: "first", Type: "LoadBalancer", Created: 1, ClusterIPs: ips("10.96.0.1"),
			Ports: []k8s.ServicePort{{Name: "dns", Protocol: "UDP", Port: 53}}}
		change(s)
		return s
	}
	for name, c := range map[string]struct{ first, last *k8s.Service }{
		"a ClusterIP as external IP": {
			first(func(s *k8s.Service) { s.ExternalIPs = ips("10.96.0.10") }), first(func(s *k8s.Service) { s.ClusterIPs = ips("10.96.0.10") })},
		"a ClusterIP as address of a load balancer": {
			first(func(s *k8s.Service) { s.IngressIPs = ips("10.96.0.10") }), first(func(s *k8s.Service) { s.ClusterIPs = ips("10.96.0.10") })},
		"an address of a load balancer as external IP": {
			first(func(s *k8s.Service) { s.ExternalIPs = ips("192.0.2.1") }), first(func(s *k8s.Service) { s.IngressIPs = ips("192.0.2.1") })},
		"a node port": {
			first(func(s *k8s.Service) { s.Ports[0].NodePort, s.Created = 30053, 2 }), first(func(s *k8s.Service) { s.Ports[0].NodePort = 30053 })},
		"a node port at the address of a load balancer": {
			first(func(s *k8s.Service) { s.IngressIPs, s.Ports[0].Port = ips("10.0.0.1"), 30053 }), first(func(s *k8s.Service) { s.Ports[0].NodePort = 30053 })},
		"a node port at an external IP": {
			first(func(s *k8s.Service) { s.ExternalIPs, s.Ports[0].Port = ips("10.0.0.1"), 30053 }), first(func(s *k8s.Service) { s.Ports[0].NodePort = 30053 })},
		"a ClusterIP of the node": {
			first(func(s *k8s.Service) { s.Ports[0].NodePort = 30053 }), first(func(s *k8s.Service) { s.ClusterIPs, s.Ports[0].Port = ips("10.0.0.1"), 30053 })},
		"a ClusterIP": {
			first(func(s *k8s.Service) { s.ClusterIPs, s.Created = ips("10.96.0.10"), 2 }), first(func(s *k8s.Service) { s.ClusterIPs = ips("10.96.0.10") })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			taken := at("10.96.0.10:53/UDP")
			b := newBench(t, DefaultConfig, &fakeIDs{frontends: map[loadbalancer.Address]uint32{taken: 7}})
			b.c.portion = 1
			c.last.Namespace, c.last.Name = "kube-system", "last"
			b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true}, c.first)
			for i := range 3 {
				b.insert(outer("bbb", fmt.Sprint("other-", i), fmt.Sprint("10.96.1.", i), "", 1))
			}
			b.insert(c.last)
			b.state(sources.Synced)
			b.firstPass()
			if got := b.owned()[taken]; got != "" && got != "ClusterIP of kube-system/last, id 7" {
				t.Errorf("%s is %s", taken, got)
			}
		})
	}
}

// TestFirstPass_HostPortAtServiceAddress: the address of a load balancer or an external IP is an address of the node. The pod owns the port from the
// first commit with this port on.
func TestFirstPass_HostPortAtServiceAddress(t *testing.T) {
	t.Parallel()
	taken := at("10.0.0.1:80/TCP")
	for _, change := range []func(*k8s.Service){
		func(s *k8s.Service) { s.Type, s.IngressIPs = "LoadBalancer", []netip.Addr{taken.Addr} },
		func(s *k8s.Service) { s.ExternalIPs = []netip.Addr{taken.Addr} },
	} {
		testHostPortAt(t, taken, change)
	}
}

func testHostPortAt(t *testing.T, taken loadbalancer.Address, change func(*k8s.Service)) {
	t.Helper()
	b := newBench(t, DefaultConfig, &fakeIDs{frontends: map[loadbalancer.Address]uint32{taken: 7}})
	b.c.portion = 1
	balanced := outer("aaa", "web", "10.96.0.1", "", 1)
	change(balanced)
	b.insert(nodeaddresses.Address{Addr: taken.Addr, Device: "eth0", NodePort: true}, balanced)
	for i := range 3 {
		b.insert(outer("bbb", fmt.Sprint("other-", i), fmt.Sprint("10.96.1.", i), "", 1))
	}
	b.insert(&k8s.Pod{Namespace: "kube-system", Name: "svclb", UID: "u", Phase: "Running", PodIPs: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
		HostPorts: []k8s.HostPort{{Protocol: "TCP", Port: 80, Container: 80}}})
	b.state(sources.Synced)
	b.firstPass()
	if got := b.owned()[taken]; got != "HostPort of kube-system/svclb:host-port/u/80, id 7" {
		t.Errorf("%s is %s", taken, got)
	}
}

// TestFirstPass_CommitsConflictFreeServicesInPortions: services without conflicts are committed in portions, so that the maps are written meanwhile.
func TestFirstPass_CommitsConflictFreeServicesInPortions(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.c.portion = 2
	b.insert(outer("a", "evil", "10.96.0.1", "10.96.1.4", 1))
	for i := range 5 {
		b.insert(outer("b", fmt.Sprint("web-", i), fmt.Sprint("10.96.1.", i), fmt.Sprint("192.0.2.", i), 1)) // two addresses each
	}
	b.state(sources.Synced)
	if got := fmt.Sprint(b.firstPass()); got != "[4 8 10 11]" {
		t.Errorf("addresses after each commit: %s", got)
	}
	b.insert(outer("c", "web", "10.96.2.1", "", 1), outer("c", "dns", "10.96.2.2", "", 1), outer("c", "http", "10.96.2.3", "", 1))
	if got := fmt.Sprint(b.firstPass()); got != "[13 14]" {
		t.Errorf("addresses after each commit of the next pass: %s", got)
	}
}

// TestFirstPass_LastCommitCompletesInitializer: the last commit of the first pass completes the initializer for which readiness waits, also when the inputs are a
// snapshot on disk.
func TestFirstPass_LastCommitCompletesInitializer(t *testing.T) {
	t.Parallel()
	for _, state := range []sources.State{sources.Snapshot, sources.Synced} {
		b := newBench(t, DefaultConfig, &fakeIDs{frontends: map[loadbalancer.Address]uint32{at("10.96.1.0:80/TCP"): 7}})
		b.c.portion = 1
		for i := range 3 {
			b.insert(outer("b", fmt.Sprint("web-", i), fmt.Sprint("10.96.1.", i), "", 1))
		}
		waits := func() bool {
			return slices.Contains(b.c.Frontends.PendingInitializers(b.db.ReadTxn()), frontends.FirstInitializer)
		}
		b.state(sources.Waiting)
		b.step()
		if !waits() {
			t.Errorf("%s: before the first pass: the first rows are in", state)
		}
		var got []bool
		b.commits.onCommit = func() { got = append(got, waits()) }
		b.state(state)
		b.step()
		b.commits.onCommit = nil
		if !slices.Equal(got, []bool{true, true, false}) {
			t.Errorf("%s: after each commit it waits: %v", state, got)
		}
	}
}

// TestFirstPass_WithoutRows: a first pass without rows completes the initializer, too.
func TestFirstPass_WithoutRows(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Snapshot)
	b.step()
	if got := b.c.Frontends.PendingInitializers(b.db.ReadTxn()); !slices.Equal(got, []string{"services"}) {
		t.Errorf("the table waits for %q", got)
	}
}
