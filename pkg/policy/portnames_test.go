package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

// TestPortNames_Limit: rules beyond the limit of names of ports fail closed.
func TestPortNames_Limit(t *testing.T) {
	t.Parallel()
	ports := func(format string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, fmt.Sprintf("p-%d", i)))
		}
		return strings.Join(append(all, all...), ", ") // the same names again do not count
	}
	const before = "podSelector: {}, egress: [{ports: [%s]}, {ports: [{port: web}]}, {ports: [{port: 81}]}]"
	for name, c := range map[string]struct {
		names int
		path  string
		want  policy.Verdict
	}{
		"the most": {999, "", policy.Allow},
		"too many": {1000, "spec.egress[1].ports[0]", policy.Deny},
	} {
		reason, message := "", ""
		if c.path != "" {
			reason, message = policy.ReasonUnsupported, "more than 1000"
		}
		policies := read(t, policy.Environment{}, netpol(fmt.Sprintf(before, ports("{port: %s}", c.names))))
		checkProblem(t, name, policies[0], c.path, reason, message)
		checkVerdict(t, name, policies, "out db>web 8080/TCP", c.want)
		checkVerdict(t, name, policies, "out db>web 81/TCP", policy.Allow)
	}
	names := ports("{port: \"%s\"}", 1000)
	policies := read(t, policy.Environment{}, cnp("endpointSelector: {}, egress: [{toEntities: [all]}, {toPorts: [{ports: ["+names+"]}]}], "+
		"egressDeny: [{toEndpoints: [{}], toPorts: [{ports: [{port: web}]}]}]"))
	checkProblem(t, "a deny", policies[0], "spec.egressDeny[0].toPorts[0].ports[0]", policy.ReasonInvalid, "more than 1000")
	checkVerdict(t, "a deny", policies, "out db>web 82/TCP", policy.Deny)
	checkVerdict(t, "a deny", policies, "out db>world 82/TCP", policy.Allow)
	policies = read(t, policy.Environment{}, cnp("endpointSelector: {}, egress: [{toPorts: [{ports: ["+names+"]}]}, {toPorts: [{ports: [{port: web}, {port: \"82\"}]}]}]"))
	checkProblem(t, "an allow", policies[0], "spec.egress[1].toPorts[0].ports[0]", policy.ReasonInvalid, "the rule allows nothing")
	checkVerdict(t, "an allow", policies, "out db>web 82/TCP", policy.Deny)
}
