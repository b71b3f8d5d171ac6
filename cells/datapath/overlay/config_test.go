package overlay

import (
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

func TestNewPools_Rejects(t *testing.T) {
	t.Parallel()
	both := agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, IPAM: agentconfig.IPAMClusterPool}
	for want, c := range map[string]Config{
		`--cluster-pool-ipv4-cidr: "fd00::/8" is not a CIDR of this family`: {IPv4CIDR: []string{"10.0.0.0/8", "fd00::/8"}},
		`--cluster-pool-ipv6-cidr: "fd00::" is not a CIDR of this family`:   {IPv6CIDR: []string{"fd00::"}},
	} {
		if _, err := newPools(c, both); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestNewPools_EnabledFamilies checks that CIDRs of a disabled family are ignored, as the cluster role ignores them, and so is the default pool.
func TestNewPools_EnabledFamilies(t *testing.T) {
	t.Parallel()
	have, err := newPools(Config{IPv4CIDR: []string{"10.0.0.0/8", "10.1.2.3/9", "10.64.0.0/10"}, IPv6CIDR: []string{"none"}},
		agentconfig.Agent{EnableIPv4: true, IPAM: agentconfig.IPAMClusterPool})
	if err != nil || len(have) != 2 || have[0].String() != "10.0.0.0/9" || have[1].String() != "10.64.0.0/10" {
		t.Errorf("have %v, %v", have, err)
	}
}
