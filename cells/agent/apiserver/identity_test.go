package apiserver

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
)

// The world label of a range is of its family, like the identity that the datapath assigns to its addresses.
func TestCIDRIdentity_HasWorldLabelOfFamily(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ipv4, ipv6   bool
		prefix, want string
	}{
		{true, true, "192.0.2.0/24", "reserved:world-ipv4"},
		{true, true, "2001:db8::/32", "reserved:world-ipv6"},
		{true, false, "192.0.2.0/24", "reserved:world"},
		{false, true, "2001:db8::/32", "reserved:world"},
	} {
		a := &api{}
		a.Settings = agentconfig.Agent{EnableIPv4: tc.ipv4, EnableIPv6: tc.ipv6}
		got := a.cidrIdentityModel(&namedcidrs.CIDR{Prefix: netip.MustParsePrefix(tc.prefix), Identity: 1<<24 + 1})
		if got.ID != 1<<24+1 || !slices.Equal(got.Labels, []string{"cidr:" + tc.prefix, tc.want}) {
			t.Errorf("IPv4 %t, IPv6 %t: %+v", tc.ipv4, tc.ipv6, got)
		}
	}
}
