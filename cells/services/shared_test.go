package services

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// A backend that several services name has the best state of all, and each other fact from the first by name who knows it, whatever order they
// come in.
func TestBackend_OfSeveralServices(t *testing.T) {
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
		want := backends.Backend{Address: at("10.1.0.1:8080/TCP"), State: backends.Active, Local: true, Node: "one", Zone: "x", Pod: "d/p",
			Services: []string{"d/a", "d/b", "d/c"}}
		if !row.Equal(&want) {
			t.Errorf("in the order %v: have %v, want %v", order, row.TableRow(), want.TableRow())
		}
	}
}
