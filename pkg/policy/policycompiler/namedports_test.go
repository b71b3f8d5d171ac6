package policycompiler

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
)

// TestCompile_NamedPorts: ports that are not served, that have the wrong protocol, and that differ between the pods of one identity.
func TestCompile_NamedPorts(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	http := func(number uint16) []policy.NamedPort {
		return []policy.NamedPort{{Name: "http", Protocol: policy.ProtocolTCP, Number: number}, {Name: "http", Protocol: policy.ProtocolUDP, Number: 1}}
	}
	r, s := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, app("web"), named), ingress(false, app("web"), named)))
	address := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }

	in, out := enforced(r)
	require.Empty(t, entriesIn(in), "the endpoint serves no such port")
	require.Empty(t, entriesIn(out), "no peer does")

	r.UpsertSubject(Subject{ID: 1, Labels: s.subjects[1].Labels, Ports: http(8080)})
	in, _ = enforced(r)
	require.Equal(t, []Entry{{Key: Key{Kind: Identity, Identity: web, Protocol: 6, Port: 8080, PortBits: 16}}}, entriesIn(in))

	r.UpsertPod("a", Pod{Identity: web, Addresses: address("10.0.0.1"), Ports: http(81)})
	r.UpsertPod("b", Pod{Identity: web, Addresses: address("10.0.0.2"), Ports: http(81)})
	require.Empty(t, r.NamedCIDRs(), "all agree")
	_, out = enforced(r)
	require.Equal(t, []Entry{{Key: Key{Kind: Identity, Identity: web, Protocol: 6, Port: 81, PortBits: 16}}}, entriesIn(out))

	r.UpsertPod("b", Pod{Identity: web, Addresses: address("fd00::2"), Ports: http(82)})
	r.UpsertPod("c", Pod{Identity: web, Addresses: address("10.0.0.3")})
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::2/128")}, r.NamedCIDRs())
	_, out = enforced(r)
	require.Empty(t, entriesIn(out), "nothing opens before the addresses have identities")
	require.Len(t, out.missing, 2)
	s.nameCIDRs(r, false)
	_, out = enforced(r)
	for text, want := range map[string][2]bool{"10.0.0.1": {true, false}, "fd00::2": {false, true}, "10.0.0.3": {false, false}} {
		for i, port := range []uint16{81, 82} {
			require.Equal(t, want[i], out.Lookup(r.Peer(web, netip.MustParseAddr(text)), 6, port).Allowed, "%s port %d", text, port)
		}
	}

	r.UpsertPod("b")
	r.UpsertPod("c")
	require.Empty(t, r.NamedCIDRs(), "all agree again")
}

// TestCompile_NamedPortsOfUncertainPods: deny rules apply to uncertain pods and allow rules do not. A pod that is known by two identities has both.
func TestCompile_NamedPortsOfUncertainPods(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	pod := func(address string, number uint16) Pod {
		p := Pod{Identity: web, Addresses: []netip.Addr{netip.MustParseAddr(address)}, DenyOnly: true}
		if number != 0 {
			p.Ports = []policy.NamedPort{{Name: "http", Protocol: policy.ProtocolTCP, Number: number}}
		}
		return p
	}
	for _, deny := range []bool{false, true} {
		rules := []policy.Rule{egress(deny, app("web"), named)}
		if deny {
			rules = append(rules, egress(false, policy.Peers{Any: true}, anyPorts()))
		}
		r, s := one(policy.Options{Mode: policy.Default}, policyOf("p", rules...))
		ports := func(address string) (open []uint16) {
			s.nameCIDRs(r, false)
			_, out := enforced(r)
			for _, port := range []uint16{81, 82} {
				if out.Lookup(r.Peer(web, netip.MustParseAddr(address)), 6, port).Allowed {
					open = append(open, port)
				}
			}
			return open
		}
		check := func(what, address string, allowed, undenied []uint16) {
			t.Helper()
			want := allowed
			if deny {
				want = undenied
			}
			require.Equal(t, want, ports(address), "%s, deny %t", what, deny)
		}
		both := []uint16{81, 82}
		require.True(t, r.NamesPortsOfPeers())
		r.UpsertPod("a", pod("10.0.0.1", 81))
		check("no peer is certain", "10.0.0.1", nil, both[1:])
		sure := pod("10.0.0.2", 81)
		sure.DenyOnly = false
		r.UpsertPod("b", sure)
		check("one is sure, and they agree", "10.0.0.1", both[:1], both[1:])
		r.UpsertPod("a", pod("10.0.0.1", 82))
		check("they do not", "10.0.0.1", nil, both[:1])
		check("the other one", "10.0.0.2", both[:1], both[1:])
		r.UpsertPod("a", pod("10.0.0.1", 0))
		check("one that serves nothing", "10.0.0.1", nil, both)

		elsewhere := sure
		elsewhere.Identity = db
		r.UpsertPod("a")
		r.UpsertPod("b", elsewhere, sure)
		check("by two identities", "10.0.0.2", both[:1], both[1:])
		r.UpsertPod("b", elsewhere)
		check("by the other alone", "10.0.0.2", nil, both)
		r.UpsertPod("b", sure)
		r.ForgetPods()
		check("all are forgotten", "10.0.0.2", nil, both)
		require.Empty(t, r.PodAs("b"))
	}
}

// TestCompile_RepeatedNamesOfPorts: a name that a rule repeats, or that it has for overlapping peers, costs as much as one. The test is not
// parallel, because AllocsPerRun counts the allocations of all goroutines.
func TestCompile_RepeatedNamesOfPorts(t *testing.T) {
	const many = 1000
	compiled := func(peers policy.Peers, n int) (entries []Entry, allocations float64) {
		ports := policy.Ports{List: slices.Repeat([]policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}, n)}
		r, s := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, peers, ports)))
		for i, number := range []uint16{81, 82} { // they differ, so entries are about addresses
			r.UpsertPod(fmt.Sprint(i), Pod{Identity: web, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
				Ports: []policy.NamedPort{{Name: "http", Protocol: policy.ProtocolTCP, Number: number}}})
		}
		s.nameCIDRs(r, false)
		var out *Compiled
		allocations = testing.AllocsPerRun(5, func() {
			r.podsChanged()
			_, out = enforced(r)
		})
		return entriesIn(out), allocations
	}
	for name, peers := range map[string]policy.Peers{"all": {Any: true}, "by labels": app("web"), "by address": cidrPeers(policy.Everyone, "10.0.0.0/8")} {
		want, few := compiled(peers, 1)
		got, most := compiled(peers, many)
		require.Len(t, want, 2, name)
		require.Equal(t, want, got, name)
		require.InDelta(t, few, most, 10, "allocations with the name %d times, %s", many, name)
		if peers.Any {
			continue
		}
		peers.List = slices.Repeat(peers.List, many)
		got, most = compiled(peers, 1)
		require.Equal(t, want, got, name)
		require.InDelta(t, few, most, 50, "allocations with %d equal peers, %s", many, name)
	}
}
