package node_test

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// A server outside sees pods under their own addresses when masquerading is off or the server is within the native routing range. A group of
// [TestPrivilegedService_Groups] covers the other case, in which it sees the node's address.
func TestPrivilegedMasquerade_SourceSeenOutside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][]string{
		"pods, masquerading off": {"--enable-ipv4-masquerade=false", "--enable-ipv6-masquerade=false"},
		"pods, in native range":  {"--ipv4-native-routing-cidr=192.0.2.0/24", "--ipv6-native-routing-cidr=2001:db8:2::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newServiceFixture(t, c...).sourceOutside(t, true)
		})
	}
}

// sourceOutside checks that a server outside sees pods under their own addresses if own is set, and under the node's address otherwise. A reply to a
// request from outside leaves under the pod's own address in both cases.
func (m *serviceFixture) sourceOutside(t *testing.T, own bool) {
	routeBack(t, m.Node)
	one, two := m.pod(t, "one", 8080), m.pod(t, "two")
	serveName(t, m.OutsideHost(), "outside", 9000)
	for _, f := range families {
		outside, node := outsideAddr(f.ipv6), uplinkAddr(f.ipv6)
		for _, network := range networks {
			for _, pod := range []*nodekit.Pod{one, two} {
				want := node
				if own {
					want = pod.Addr(f.ipv6)
				}
				m.seesClient(t, pod, network, netip.AddrPortFrom(outside, 9000), want)
				m.seesClient(t, m.Host(), network, netip.AddrPortFrom(outside, 9000), node)
			}
			// The client's socket accepts a reply from the pod's address only.
			m.seesClient(t, m.OutsideHost(), network, netip.AddrPortFrom(one.Addr(f.ipv6), 8080), outside)
			m.seesClient(t, two, network, netip.AddrPortFrom(one.Addr(f.ipv6), 8080), two.Addr(f.ipv6))
		}
		if err := nodekit.Ping(one, outside, 56); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		if err := nodekit.Ping(one, outside, 4000); err != nil {
			t.Errorf("%s, in fragments: %v", f.name, err)
		}
		if err := nodekit.Ping(m.OutsideHost(), one.Addr(f.ipv6), 56); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}

func uplinkAddr(ipv6 bool) netip.Addr {
	if ipv6 {
		return nodekit.UplinkIPv6.Addr()
	}
	return nodekit.UplinkIPv4.Addr()
}

// Streams, fragmented datagrams, and ICMP errors for a closed port reach the pod whose packets left under the node's address.
func TestPrivilegedMasquerade_StreamsAndFragments(t *testing.T) {
	t.Parallel()
	m := newServiceFixture(t)
	one := m.pod(t, "one")
	for _, f := range families {
		for _, size := range []int{100, 9000} {
			if err := nodekit.UDP(one, m.OutsideHost(), outsideAddr(f.ipv6), size); err != nil {
				t.Errorf("datagram of %d bytes: %v", size, err)
			}
		}
		if err := nodekit.TCP(one, m.OutsideHost(), outsideAddr(f.ipv6), 1<<20); err != nil {
			t.Error(err)
		}
		if err := nodekit.ClosedPort(one, outsideAddr(f.ipv6)); err != nil {
			t.Errorf("a closed port outside: %v", err)
		}
	}
}
