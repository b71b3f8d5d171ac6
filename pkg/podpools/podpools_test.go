package podpools

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

func TestNew_Rejects(t *testing.T) {
	t.Parallel()
	both := agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, IPAM: agentconfig.IPAMClusterPool}
	for want, c := range map[string]Config{
		`--cluster-pool-ipv4-cidr: "fd00::/8" is not a CIDR of this family`: {IPv4CIDR: []string{"10.0.0.0/8", "fd00::/8"}},
		`--cluster-pool-ipv6-cidr: "fd00::" is not a CIDR of this family`:   {IPv6CIDR: []string{"fd00::"}},
	} {
		if _, err := New(c, both); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestNew_EnabledFamilies checks that CIDRs of a disabled family are ignored, as the cluster role ignores them, and so is the default pool.
func TestNew_EnabledFamilies(t *testing.T) {
	t.Parallel()
	have, err := New(Config{IPv4CIDR: []string{"10.0.0.0/8", "10.1.2.3/9", "10.64.0.0/10"}, IPv6CIDR: []string{"none"}},
		agentconfig.Agent{EnableIPv4: true, IPAM: agentconfig.IPAMClusterPool})
	if err != nil || len(have) != 2 || have[0].String() != "10.0.0.0/9" || have[1].String() != "10.64.0.0/10" {
		t.Errorf("have %v, %v", have, err)
	}
}

func TestPools_Contains(t *testing.T) {
	t.Parallel()
	pools := Pools{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:7::/104"), netip.MustParsePrefix("fd00:8::/104")}
	self := &localnode.LocalNode{IPv4: localnode.Family{NodeIP: netip.MustParseAddr("192.0.2.1")}, IPv6: localnode.Family{NodeIP: netip.MustParseAddr("fd00:8::1")}}
	for text, want := range map[string]bool{"10.128.0.0/14": true, "10.131.255.0/24": true, "10.128.0.0/13": false, "10.132.0.0/24": false, "fd00:7::/120": true, "fd00::/16": false, "fd00:8::/120": false,
		"0.0.0.0/0": false} {
		if have := pools.Contains(netip.MustParsePrefix(text), self); have != want {
			t.Errorf("%s: %t, want %t", text, have, want)
		}
	}
}
