package servicecontroller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// owners formats the owner of each address, and the other claimants.
func (b *bench) owners() string {
	var out []string
	for f := range b.c.Frontends.All(b.db.ReadTxn()) {
		out = append(out, fmt.Sprint(f.Address, " ", f.Kind, " ", f.Service, f.Refused))
	}
	return strings.Join(out, ", ")
}

func outer(namespace, name, ip, outside string, made int64) *k8s.Service {
	s := &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP", Created: made, Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}}
	if outside != "" {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr(outside)}
	}
	return s
}

// TestConflict_OwnerDeleted_NextClaimantIsOwner: of two Services that are added together, the older one owns an address, and the other one when the owner
// is deleted. No tenant gets the ClusterIP of another Service, on any port.
func TestConflict_OwnerDeleted_NextClaimantIsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	older, younger, thief := outer("a", "older", "10.96.0.1", "192.0.2.1", 1), outer("b", "younger", "10.96.0.2", "192.0.2.1", 2), outer("c", "thief", "10.96.0.3", "10.96.0.1", 0)
	thief.Ports[0].Port = 81
	b.insert(thief)
	b.state(sources.Synced)
	b.step()
	b.expect("before", b.owners(), "10.96.0.1:81/TCP ExternalIPs c/thief[], 10.96.0.3:81/TCP ClusterIP c/thief[]")
	b.insert(younger, older)
	b.step()
	b.expect("contested", b.owners(), "10.96.0.1:80/TCP ClusterIP a/older[], 10.96.0.2:80/TCP ClusterIP b/younger[], 10.96.0.3:81/TCP ClusterIP c/thief[], 192.0.2.1:80/TCP ExternalIPs a/older[b/younger]")
	b.expect("younger", b.problemsOf("b/younger"), "192.0.2.1:80/TCP: belongs to a/older")
	b.expect("thief", b.problemsOf("c/thief"), "ExternalIPs 10.96.0.1: is the ClusterIP of another Service")
	b.remove(older)
	b.step()
	b.expect("after", b.owners(), "10.96.0.1:81/TCP ExternalIPs c/thief[], 10.96.0.2:80/TCP ClusterIP b/younger[], 10.96.0.3:81/TCP ClusterIP c/thief[], 192.0.2.1:80/TCP ExternalIPs b/younger[]")
	b.expect("younger has it", b.problemsOf("b/younger"), "")
}

// TestConflict_OwnerKeepsAddress: an older Service of another namespace that is changed to claim an address does not replace the owner. An older Service of the
// owner's namespace does, and so does a better kind.
func TestConflict_OwnerKeepsAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.c.portion = 1
	has := func(what, want string) {
		t.Helper()
		f := b.c.frontend(b.db.ReadTxn(), at("192.0.2.1:80/TCP"))
		b.expect(what, fmt.Sprint(f.Kind, " ", f.Service, f.Refused), want)
	}
	b.insert(outer("a", "web", "10.96.0.1", "192.0.2.1", 5), outer("b", "old", "10.96.0.2", "", 1))
	b.state(sources.Synced)
	b.step()
	has("alone", "ExternalIPs a/web[]")
	b.insert(outer("b", "old", "10.96.0.2", "192.0.2.1", 1), outer("c", "older", "10.96.0.3", "192.0.2.1", 0))
	b.step()
	has("others claim it", "ExternalIPs a/web[c/older b/old]")
	b.expect("who comes too late", b.problemsOf("b/old"), "192.0.2.1:80/TCP: belongs to a/web")
	b.insert(outer("a", "mine", "10.96.0.4", "192.0.2.1", 4))
	b.step()
	has("an older one of the same namespace", "ExternalIPs a/mine[c/older b/old a/web]")
	b.remove(outer("a", "mine", "10.96.0.4", "192.0.2.1", 4))
	b.step()
	has("it is removed", "ExternalIPs c/older[b/old a/web]")
	balanced := outer("a", "web", "10.96.0.1", "", 5)
	balanced.Type, balanced.IngressIPs = typeLB, ips("192.0.2.1")
	b.insert(balanced)
	b.step()
	has("a better kind", "LoadBalancer a/web[c/older b/old]")
	b.remove(balanced)
	b.insert(outer("c", "older", "10.96.0.3", "", 0))
	b.step()
	has("all but one have gone", "ExternalIPs b/old[]")
	b.insert(outer("c", "older", "10.96.0.3", "192.0.2.1", 0))
	b.step()
	has("it is added again", "ExternalIPs b/old[c/older]")
}

// TestConflict_ClusterIPOfOtherProxy_IsReserved: no other Service on this node gets the ClusterIP of a Service that another proxy or another node serves.
func TestConflict_ClusterIPOfOtherProxy_IsReserved(t *testing.T) {
	t.Parallel()
	const why = "ExternalIPs 10.96.0.1: is the ClusterIP of another Service"
	b := newBench(t, DefaultConfig, &fakeIDs{})
	victim := func(change func(*k8s.Service)) *k8s.Service {
		s := outer("a", "web", "10.96.0.1", "", 1)
		change(s)
		return s
	}
	proxied := victim(func(s *k8s.Service) { s.Labels = map[string]string{k8s.LabelServiceProxyName: "other"} })
	b.insert(outer("b", "thief", "10.96.0.2", "10.96.0.1", 0), proxied)
	b.state(sources.Synced)
	b.step()
	b.expect("another proxy's", b.problemsOf("b/thief"), why)
	b.insert(victim(func(s *k8s.Service) { s.Annotations = map[string]string{serviceannotations.Node: "edge"} }))
	b.step()
	b.expect("another node's", b.problemsOf("b/thief"), why)
	b.insert(victim(func(*k8s.Service) {}))
	b.step()
	b.expect("ours", b.problemsOf("b/thief"), why)
	b.insert(victim(func(s *k8s.Service) { s.Labels, s.ClusterIPs = proxied.Labels, ips("10.96.0.9") }))
	b.step()
	b.expect("of another address", b.problemsOf("b/thief"), "")
	b.insert(proxied)
	b.step()
	b.expect("another proxy's again", b.problemsOf("b/thief"), why)
	b.remove(proxied)
	b.step()
	b.expect("gone", b.problemsOf("b/thief"), "")
}
