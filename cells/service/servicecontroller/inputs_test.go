package servicecontroller

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// backendsOf returns the last character of the addresses of a Service's backends, ordered by id.
func (b *bench) backendsOf(service string) (out string) {
	b.t.Helper()
	txn := b.db.ReadTxn()
	row, _, found := b.c.Services.Get(txn, services.ByName(service))
	if !found {
		return "no row"
	}
	for _, id := range row.Backends {
		x, _, found := b.c.Backends.Get(txn, backends.ByID(id))
		if !found {
			b.t.Errorf("%s: the backend %d has no row", service, id)
			continue
		}
		text := x.Addr.String()
		out += text[len(text)-1:]
	}
	return out
}

// TestSlices_NamedAsService_BackendsFollowTheLabel checks that a Service loses the backends of a slice that has exactly the name of a Service and moves to
// another Service by its label. The cell stores only slices whose name neither is the name of their Service nor begins with it.
func TestSlices_NamedAsService_BackendsFollowTheLabel(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	service := func(name, ip string) *k8s.Service {
		return web(func(s *k8s.Service) {
			s.Name, s.Type, s.ClusterIPs, s.ExternalIPs, s.Ports[0].NodePort = name, "ClusterIP", ips(ip), nil, 0
		})
	}
	slice := func(name, service, endpoint string) *k8s.EndpointSlice {
		s := endpointsOf(endpoint + "- r")
		s.Name, s.Service = name, service
		return s
	}
	expect := func(what, ofWeb, ofDNS string, strays int) {
		t.Helper()
		b.step()
		b.expect(what+": web", b.backendsOf("a/web"), ofWeb)
		b.expect(what+": dns", b.backendsOf("a/dns"), ofDNS)
		if have := len(b.c.in.strays); have != strays {
			t.Errorf("%s: %d stored slices, want %d", what, have, strays)
		}
	}
	b.insert(service("web", "10.96.0.1"), service("dns", "10.96.0.2"), slice("web", "web", "1"))
	b.state(sources.Synced)
	expect("one slice with the name of the Service", "1", "", 0)
	b.insert(slice("web-2", "web", "2"))
	expect("two slices", "12", "", 0)
	b.insert(slice("web", "dns", "1"))
	expect("moved to another Service", "2", "1", 1)
	b.insert(slice("web", "", "1"))
	expect("moved to no Service", "2", "", 0)
	b.insert(slice("web", "dns", "1"))
	expect("moved to another Service again", "2", "1", 1)
	b.insert(slice("web", "web", "1"))
	b.remove(slice("web-2", "web", "2"))
	expect("moved back, and the other slice is deleted", "1", "", 0)
	b.insert(slice("web", "dns", "1"))
	b.remove(slice("web", "dns", "1"))
	expect("moved and deleted in one pass", "", "", 0)
	b.insert(slice("dns", "web", "3"))
	expect("the name of another Service", "3", "", 1)
	b.remove(service("dns", "10.96.0.2"))
	expect("this other Service is deleted", "3", "no row", 1)
	b.insert(slice("dns", "dns", "3"))
	expect("moved to a Service that does not exist", "", "no row", 0)
	b.insert(service("dns", "10.96.0.2"))
	expect("which is created", "", "3", 0)
	b.remove(slice("dns", "dns", "3"))
	expect("deleted", "", "", 0)
}
