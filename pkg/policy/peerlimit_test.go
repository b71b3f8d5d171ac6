package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

// TestPeerSelectors_Limit: rules beyond the limit of peers by labels fail closed.
func TestPeerSelectors_Limit(t *testing.T) {
	t.Parallel()
	peers := func(format string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ", ")
	}
	const blocks = "{ipBlock: {cidr: 192.0.2.1/32}}, {ipBlock: {cidr: 192.0.2.2/32}}" // do not count
	for n, want := range map[int]policy.Verdict{999: policy.Allow, 1000: policy.Deny} {
		path, reason, message := "", "", ""
		if want == policy.Deny {
			path, reason, message = "spec.ingress[1].from[0]", policy.ReasonUnsupported, "more than 1000"
		}
		name := fmt.Sprint(n)
		policies := read(t, policy.Environment{}, netpol("podSelector: {}, ingress: [{from: ["+blocks+", "+peers("{podSelector: {matchLabels: {app: x%d}}}", n)+
			"]}, {from: [{podSelector: {}}]}, {ports: [{port: 81}]}]"))
		checkProblem(t, name, policies[0], path, reason, message)
		checkVerdict(t, name, policies, "in web>db 80/TCP", want)
		checkVerdict(t, name, policies, "in web>db 81/TCP", policy.Allow)
	}
	many := "endpointSelector: {}, ingress: [{fromEntities: [all]}, {fromEndpoints: [" + peers("{matchLabels: {app: x%d}}", 1000) + "]}]"
	policies := read(t, policy.Environment{}, cnp(many+", ingressDeny: [{fromEndpoints: [{matchLabels: {app: none}}], toPorts: [{ports: [{port: \"80\"}]}]}]"))
	checkProblem(t, "a deny", policies[0], "spec.ingressDeny[0].fromEndpoints[0]", policy.ReasonInvalid, "more than 1000")
	checkVerdict(t, "a deny", policies, "in world>db 80/TCP", policy.Deny)
	checkVerdict(t, "a deny", policies, "in world>db 81/TCP", policy.Allow)
}
