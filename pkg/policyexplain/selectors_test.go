package policyexplain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// The text of a selector is truncated. Two selectors whose texts begin alike remain separate, each with its own identities and policies.
func TestSelectors_EqualTruncatedText_StaySeparate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	values := strings.Repeat("a-value-that-no-pod-has, ", 20)
	for _, app := range []string{"cart", "free"} {
		parsed, _, err := manifests.Policies(fmt.Appendf(nil, `
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: from-%s}
spec:
  endpointSelector: {}
  ingress: [{fromEndpoints: [{matchExpressions: [{key: "k8s:app", operator: In, values: [%s%s]}]}]}]
`, app, values, app), f.tables.Environment.Read(f.tables.DB.ReadTxn(), statedb.NewWatchSet()))
		if err != nil {
			t.Fatal(err)
		}
		insert(t, f.tables.DB, f.policies, &policies.Policy{Policy: parsed[0]})
	}
	var found [][]int64
	for _, s := range f.tables.View().Selectors() {
		if strings.Contains(s.Selector, "a-value-that-no-pod-has") {
			if s.Users != 1 || len(s.Selector) > 2*maxPeers {
				t.Errorf("%d policies use %q", s.Users, s.Selector)
			}
			found = append(found, s.Identities)
		}
	}
	if !slices.EqualFunc(found, [][]int64{{302}, {303}}, slices.Equal) {
		t.Errorf("the selectors choose %v, want 302 and 303, each for itself", found)
	}
}
