package servicecontroller

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// A backend of several services has the best state that any of them reports, and node, zone and pod from the first service, by name, that reports each, in any
// order of arrival. Only the node itself determines Local.
func TestBackend_SharedByServices(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}, {"c", "a", "b"}} {
		b := newBench(t, DefaultConfig, &fakeIDs{})
		b.state(sources.Synced)
		rows := map[string]*k8s.EndpointSlice{}
		for name, e := range map[string]k8s.SliceEndpoint{
			"a": {Serving: true, Terminating: true, Zone: "x"}, "b": {Ready: true, Zone: "y", NodeName: "one"}, "c": {Pod: "d/p", NodeName: "two"}} {
			e.Addrs = []netip.Addr{netip.MustParseAddr("10.1.0.1")}
			rows[name] = &k8s.EndpointSlice{Namespace: "d", Name: name + "-1", Service: name, AddressType: "IPv4",
				Ports: []k8s.SlicePort{{Protocol: "TCP", Port: 8080}}, Endpoints: []k8s.SliceEndpoint{e}}
		}
		for i, name := range order {
			b.insert(&k8s.Service{Namespace: "d", Name: name, Type: "ClusterIP", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)})},
				Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}}, rows[name])
			b.step()
		}
		row := *b.c.backend(b.db.ReadTxn(), at("10.1.0.1:8080/TCP"))
		row.ID = 0
		want := backends.Backend{Address: at("10.1.0.1:8080/TCP"), State: backends.Active, Node: "one", Zone: "x", Pod: "d/p",
			Services: []string{"d/a", "d/b", "d/c"}}
		if !row.Equal(&want) {
			t.Errorf("in the order %v: have %v, want %v", order, row.TableRow(), want.TableRow())
		}
	}
}

// TestBackend_Local_DependsOnNodeAlone: a slice of another namespace does not change Local of a backend. Otherwise replies to its external clients would
// take another path.
func TestBackend_Local_DependsOnNodeAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Synced)
	slice := func(namespace, node string) *k8s.EndpointSlice {
		s := endpointsOf("1- r", "2L r", "3- r")
		s.Namespace = namespace
		for i := range s.Endpoints {
			s.Endpoints[i].NodeName = cmp.Or(node, s.Endpoints[i].NodeName)
		}
		return s
	}
	local := func(what, want string) {
		t.Helper()
		got := ""
		for x := range b.c.Backends.All(b.db.ReadTxn()) {
			if text := x.Addr.String(); x.Local {
				got += text[len(text)-1:]
			}
		}
		b.expect(what, got, want)
	}
	pod := &endpoints.Endpoint{ID: 1, ContainerID: "c", IfName: "eth0", IPv4: netip.MustParseAddr("10.1.0.2")}
	b.insert(web(nil), slice("a", ""), pod)
	b.step()
	local("the owner's slice", "2")
	b.insert(web(func(s *k8s.Service) {
		s.Namespace, s.ClusterIPs, s.IngressIPs, s.ExternalIPs = "b", ips("10.96.0.2"), nil, nil
	}), slice("b", "one"))
	b.step()
	local("a slice of another Service names this node for all", "2")
	b.insert(slice("b", "two"))
	b.step()
	local("a slice of another Service names another node for all", "2")
	unmanaged := &k8s.Pod{Namespace: "a", Name: "p", Phase: "Running", PodIPs: ips("10.1.0.1")}
	b.insert(unmanaged, nodeaddresses.Address{Addr: netip.MustParseAddr("10.1.0.3"), Device: "eth0"})
	b.step()
	local("a pod without an endpoint, and the node itself", "123")
	b.remove(pod)
	b.insert(&k8s.Pod{Namespace: "a", Name: "p", Phase: "Succeeded", PodIPs: ips("10.1.0.1")})
	b.step()
	local("pods that have gone", "3")
}
