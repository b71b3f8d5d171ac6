package servicecontroller

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestRejects_ForeignAddresses: no Service gets an address of another node, of a pod CIDR or of the range of ClusterIPs, or a loopback or
// link-local address.
func TestRejects_ForeignAddresses(t *testing.T) {
	t.Parallel()
	config := DefaultConfig
	config.IPv4Range = "10.96.0.0/16"
	for ip, want := range map[string]string{
		"10.0.0.1":    "",
		"10.0.0.2":    "ExternalIPs 10.0.0.2: is an address of node two",
		"10.1.0.9":    "ExternalIPs 10.1.0.9: lies in the pod CIDR of a node",
		"10.96.9.9":   "ExternalIPs 10.96.9.9: lies in 10.96.0.0/16, the range of ClusterIPs",
		"127.0.0.1":   "ExternalIPs 127.0.0.1: is unspecified, loopback, link-local or multicast",
		"169.254.1.1": "ExternalIPs 169.254.1.1: is unspecified, loopback, link-local or multicast",
		"2001:db8::1": "ExternalIPs 2001:db8::1: the Service has no ClusterIP of this family",
		"192.0.2.1":   "",
	} {
		b := newBench(t, config, &fakeIDs{})
		b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0"},
			&k8s.Node{Name: "two", PodCIDRs: []string{"10.1.0.0/24"}, Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}}, outer("a", "web", "10.96.0.1", ip, 0))
		b.state(sources.Synced)
		b.step()
		b.expect(ip, b.problemsOf("a/web"), want)
	}
}

// TestAccepts_LoadBalancerAddressOfThisNode: kube-vip and keepalived add the address of a load balancer to a node, and k3s assigns the nodes' own
// addresses. An external IP may be an address of the node, too. A node port has precedence over a load balancer, which has precedence over an external IP.
// Addresses of pods, of other nodes and of other Services stay rejected.
func TestAccepts_LoadBalancerAddressOfThisNode(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	balanced := outer("a", "web", "10.96.0.1", "", 0)
	balanced.Type, balanced.IngressIPs = typeLB, ips("10.0.0.1", "10.0.0.3", "10.1.0.1", "10.0.0.2", "10.96.0.2")
	taker := outer("b", "port", "10.96.0.2", "10.0.0.3", 1)
	own := func(text string, serving bool) nodeaddresses.Address {
		return nodeaddresses.Address{Addr: netip.MustParseAddr(text), Device: "eth0", NodePort: serving}
	}
	b.insert(balanced, taker, own("10.0.0.1", true), own("10.0.0.3", false), own("10.1.0.1", false),
		&k8s.Node{Name: "one", PodCIDRs: []string{"10.1.0.0/24"}, Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}}},
		&k8s.Node{Name: "two", Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}})
	b.state(sources.Synced)
	b.step()
	const rest = "10.96.0.1:80/TCP ClusterIP a/web[], 10.96.0.2:80/TCP ClusterIP b/port[]"
	b.expect("owners", b.owners(), "10.0.0.1:80/TCP LoadBalancer a/web[], 10.0.0.3:80/TCP LoadBalancer a/web[b/port], "+rest)
	b.expect("problems", b.problemsOf("a/web"), "LoadBalancer 10.0.0.2: is an address of node two; "+
		"LoadBalancer 10.1.0.1: lies in the pod CIDR of a node; LoadBalancer 10.96.0.2: is the ClusterIP of another Service")
	b.expect("external IP", b.problemsOf("b/port"), "10.0.0.3:80/TCP: belongs to a/web")
	balanced = web(func(s *k8s.Service) { *s = *balanced; s.Ports = []k8s.ServicePort{{Protocol: "TCP", Port: 30001}} })
	taker = web(func(s *k8s.Service) {
		*s = *taker
		s.Type, s.Ports = typeNodePort, []k8s.ServicePort{{Protocol: "TCP", Port: 80, NodePort: 30001}}
	})
	b.insert(balanced, taker)
	b.step()
	b.expect("a node port", b.owners(), "10.0.0.1:30001/TCP NodePort b/port[a/web], 10.0.0.3:80/TCP ExternalIPs b/port[], 10.0.0.3:30001/TCP LoadBalancer a/web[], 10.96.0.1:30001/TCP ClusterIP a/web[], "+
		"10.96.0.2:80/TCP ClusterIP b/port[], 127.0.0.1:30001/TCP NodePort b/port[]")
}

// TestReplaceClusterIPs_BothFamilies_CountsAreSeparate checks that an IPv4 address and the same address mapped to IPv6 have numbers of their own, and that a
// number of 0 takes no memory.
func TestReplaceClusterIPs_BothFamilies_CountsAreSeparate(t *testing.T) {
	t.Parallel()
	x := newAddresses()
	all := ips("10.96.0.1", "::ffff:10.96.0.1", "fd00::1")
	for i, a := range all {
		own, calls := []netip.Addr{a}, 0
		changed := func(netip.Addr) { calls++ }
		x.replaceClusterIPs(nil, own, changed)
		for _, other := range all[i+1:] {
			if x.taken(nil, other) {
				t.Errorf("%s is taken, but only %s is a ClusterIP", other, a)
			}
		}
		if !x.taken(nil, a) || x.taken(own, a) {
			t.Errorf("%s: taken for others %t, for its Service %t, want true and false", a, x.taken(nil, a), x.taken(own, a))
		}
		x.replaceClusterIPs(nil, own, changed) // another Service
		if !x.taken(own, a) {
			t.Errorf("%s: not taken, but two Services name it", a)
		}
		x.replaceClusterIPs(own, own, changed)
		x.replaceClusterIPs(own, nil, changed)
		if x.taken(own, a) || calls != 3 {
			t.Errorf("%s: taken after one of two Services is deleted, or %d changes instead of 3", a, calls)
		}
	}
	for _, a := range all {
		x.replaceClusterIPs([]netip.Addr{a}, nil, func(netip.Addr) {})
	}
	if len(x.clusterIPs.ipv4)+len(x.clusterIPs.ipv6) != 0 {
		t.Errorf("counts stay without Services: %v", x.clusterIPs)
	}
}
