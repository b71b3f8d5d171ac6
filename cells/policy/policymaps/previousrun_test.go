package policymaps

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// TestPreviousRun_AddedStopWidens: the previous run denied a range. An exception of this deny is an entry with the verdict deny, but it opens a part of the range.
func TestPreviousRun_AddedStopWidens(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	compile := func(rules string) *policycompiler.Compiled {
		put(t, w.DB, rw[*cilium.Policy](w.CiliumPolicies), rulesOf("ns-0", "p", "app-0", `"egress": [{"toEntities": ["all"]}], `+rules))
		w.step(t)
		return w.views.by[1].of[2]
	}
	enforced := compile(`"egressDeny": [{"toCIDRSet": [{"cidr": "50.1.0.0/16"}]}]`)
	older := compile(`"egressDeny": [{"toCIDRSet": [{"cidr": "50.1.0.0/16", "except": ["50.1.2.0/24"]}]}]`)
	previous := previousRun{entries: map[uint32]map[policycompiler.Key]bool{40: {}}}
	for e := range enforced.Entries() {
		previous.entries[40][e.Key] = e.Deny
	}
	require.True(t, previous.within(enforced, 40))
	require.False(t, previous.within(older, 40))
}
