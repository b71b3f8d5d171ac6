package policycompiler

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// TestCompile_DenyOfACIDRWinsOverANarrowerAllow: at every address of the denied prefix, in both families.
func TestCompile_DenyOfACIDRWinsOverANarrowerAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		world                      uint32
		wide, narrow, near, inside string
	}{
		{identity.WorldIPv4, "10.0.0.0/8", "10.1.0.0/16", "10.2.0.1", "10.1.0.1"},
		{identity.WorldIPv6, "fd00::/16", "fd00:1::/32", "fd00:2::1", "fd00:1::1"},
	} {
		r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(true, cidrPeers(policy.Outside, c.wide), anyPorts()),
			egress(false, cidrPeers(policy.Outside, c.narrow), anyPorts())))
		_, out := enforced(r)
		for _, address := range []string{c.near, c.inside} {
			answer := out.Lookup(r.Peer(c.world, netip.MustParseAddr(address)), 6, 80)
			require.True(t, !answer.Allowed && answer.Entry.Deny, address)
		}
	}
}

// TestCompile_ExceptedAddressAllowedByOtherRule: an exception applies only to its own rule.
func TestCompile_ExceptedAddressAllowedByOtherRule(t *testing.T) {
	t.Parallel()
	r, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, cidrPeers(policy.Everyone, "0.0.0.0/0", "10.0.0.0/8"), anyPorts()),
		egress(false, cidrPeers(policy.Everyone, "10.1.0.0/16", "10.1.2.0/24"), tcp80)))
	_, out := enforced(r)
	for address, want := range map[string][2]bool{ // port 80, port 81
		"192.0.2.1": {true, true}, "10.2.0.1": {false, false}, "10.1.0.1": {true, false}, "10.1.2.1": {false, false},
	} {
		for i, port := range []uint16{80, 81} {
			for _, who := range []uint32{web, identity.WorldIPv4, identity.RemoteNode} { // the rule applies to every peer
				require.Equal(t, want[i], out.Lookup(r.Peer(who, netip.MustParseAddr(address)), 6, port).Allowed, "%s:%d", address, port)
			}
		}
	}
	require.False(t, out.Lookup(r.Peer(identity.WorldIPv6, netip.MustParseAddr("2001:db8::1")), 6, 80).Allowed)
}

// TestCompile_PrefixAddedWhileAnotherIsMissing: an excepted prefix stays denied if a wider prefix gets its identity first.
func TestCompile_PrefixAddedWhileAnotherIsMissing(t *testing.T) {
	t.Parallel()
	r, s := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, cidrPeers(policy.Outside, "10.0.0.0/8", "10.0.0.0/28"), anyPorts())))
	allowed := func(address string) bool {
		_, out := enforced(r)
		return out.Lookup(r.Peer(identity.WorldIPv4, netip.MustParseAddr(address)), 6, 80).Allowed
	}
	const numberOfExcept = 0x01000002
	require.Equal(t, map[netip.Prefix]uint32{netip.MustParsePrefix("10.0.0.0/8"): 0x01000001, netip.MustParsePrefix("10.0.0.0/28"): numberOfExcept}, s.cidrs)
	require.True(t, allowed("10.0.0.100"))

	some := map[netip.Prefix]uint32{netip.MustParsePrefix("10.0.0.0/8"): 0x01000001}
	r.SetCIDRs(some)
	require.False(t, allowed("10.0.0.1"))
	some[netip.MustParsePrefix("10.0.0.0/24")] = 0x01000003 // of another policy
	r.SetCIDRs(some)
	require.False(t, allowed("10.0.0.1"))
	some[netip.MustParsePrefix("10.0.0.0/28")] = numberOfExcept
	r.SetCIDRs(some)
	require.False(t, allowed("10.0.0.1"))
	require.True(t, allowed("10.0.0.100"))
}

// TestCompile_NestedCIDRs: with nested CIDRs a rule has one entry for its CIDR and one for its exception, regardless of the number of CIDRs inside that other
// rules name.
func TestCompile_NestedCIDRs(t *testing.T) {
	t.Parallel()
	wide := policyOf("wide", egress(false, cidrPeers(policy.Everyone, "0.0.0.0/0", "169.254.169.254/32"), tcp80))
	many := policyOf("many")
	many.Parts[0].Subject.Requirements = []policy.Requirement{label("app", "other")}
	for i := range 1000 {
		rule := egress(false, cidrPeers(policy.Outside, netip.PrefixFrom(netip.AddrFrom4([4]byte{50, 0, byte(i >> 8), byte(i)}), 32).String()), anyPorts())
		rule.Path = fmt.Sprint("spec.egress[", i, "]")
		many.Parts[0].Rules = append(many.Parts[0].Rules, rule)
	}
	r, s := one(policy.Options{Mode: policy.Default}, wide, many)
	s.subjects[2] = Subject{ID: 2, Labels: map[string]string{"k8s:app": "other"}}
	for _, nested := range []bool{false, true} {
		s.nested = nested
		r = s.resolver()
		s.nameCIDRs(r, false)
		_, out := enforced(r)
		entries, _ := out.Len()
		require.Equal(t, map[bool]int{false: 1001, true: 2}[nested], entries)
		require.Equal(t, nested, out.Shape()&(ShapeNested|ShapeStops) == ShapeNested|ShapeStops)
		for address, want := range map[string]bool{"50.0.0.7": true, "8.8.8.8": true, "169.254.169.254": false} {
			peer := r.Peer(identity.WorldIPv4, netip.MustParseAddr(address))
			require.Equal(t, want, out.Lookup(peer, policy.ProtocolTCP, 80).Allowed, address)
			require.False(t, out.Lookup(peer, policy.ProtocolTCP, 81).Allowed, address)
		}
	}
	// One more CIDR of another policy changes nothing.
	_, before := enforced(r)
	s.cidrs[netip.MustParsePrefix("60.0.0.0/8")] = 0x01ffffff
	r.SetCIDRs(maps.Clone(s.cidrs))
	require.False(t, r.NeedsCompile())
	_, after := enforced(r)
	require.Same(t, before, after)
}
