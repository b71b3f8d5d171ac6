package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

// requirementsOf returns n requirements of one owner, each with a value of its own and the same namespace.
func requirementsOf(n int, deny bool) *policy.Requirements {
	part := policy.Part{}
	for i := range n {
		part.Requirements = append(part.Requirements, policy.PeerRequirement{Direction: policy.Ingress, Deny: deny, Labels: policy.Selector{
			Requirements: []policy.Requirement{{Source: "k8s", Key: "app", Operator: policy.NotIn, Values: []string{fmt.Sprint(i)}},
				{Source: "k8s", Key: "io.kubernetes.pod.namespace", Operator: policy.Exists}}}})
	}
	var all policy.Requirements
	all.Add(policy.Ref{Namespace: "red"}, &part, policy.Ingress)
	return &all
}

func TestNarrow_ManyRequirements(t *testing.T) {
	t.Parallel()
	own := []policy.Requirement{{Source: "k8s", Key: "tier", Operator: policy.Exists}}
	peers := []policy.Peer{{Labels: &policy.Selector{Requirements: own}}, {CIDR: netip.MustParsePrefix("10.0.0.0/8")},
		{Labels: &policy.Selector{Requirements: own}, Entity: true}}
	for name, c := range map[string]struct {
		deny         bool
		requirements int
		conditions   int // of the peer by labels; 0: the peer is removed
	}{
		"few":                      {false, 3, 1 + 3 + 1}, // the namespace counts once
		"the most":                 {false, 199, 1 + 199 + 1},
		"too many":                 {false, 200, 0},
		"the most, of deny rules":  {true, 199, 1 + 199 + 1},
		"too many, of a deny rule": {true, 200, 1},
	} {
		rule := &policy.Rule{Direction: policy.Ingress, Deny: c.deny, Peers: policy.Peers{List: peers}, Ports: policy.Ports{Any: true}}
		got := requirementsOf(c.requirements, c.deny).Narrow(policy.Ref{Namespace: "red"}, rule).Peers
		want := len(peers)
		if c.conditions == 0 {
			want--
		} else if n := len(got.List[0].Labels.Requirements); n != c.conditions {
			t.Errorf("%s: %d conditions, want %d", name, n, c.conditions)
		}
		if got.Any || len(got.List) != want || !got.List[want-2].CIDR.IsValid() || !got.List[want-1].Entity {
			t.Errorf("%s: peers %+v", name, got)
		}
	}
	if len(peers) != 3 || len(peers[0].Labels.Requirements) != 1 {
		t.Errorf("the peers of the rule have changed: %+v", peers)
	}
}

// TestFromCilium_ManyRequirements: a policy has a limited number of conditions in fromRequires and toRequires. Beyond it, its allow rules allow nothing, and deny rules
// are not narrowed.
func TestFromCilium_ManyRequirements(t *testing.T) {
	t.Parallel()
	selectors := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("{matchExpressions: [{key: \"k8s:app\", operator: NotIn, values: [x%d]}]}", i))
		}
		return strings.Join(append(all, all...), ", ") // the same again does not count
	}
	const beyond = "spec.ingress[0].fromRequires[99]"
	allow := "endpointSelector: {}, ingress: [{fromRequires: [%s]}, {fromEndpoints: [{}]}, {fromEntities: [world]}]"
	deny := "endpointSelector: {}, ingress: [{fromEntities: [all]}], ingressDeny: [{fromEndpoints: [{}], fromRequires: [%s, {matchLabels: {app: none}}]}]"
	policies := read(t, policy.Environment{}, cnp(fmt.Sprintf(allow, selectors(99)))) // and the namespace
	checkProblem(t, "the most", policies[0], "", "", "")
	checkVerdict(t, "the most", policies, "in web>db 80/TCP", policy.Allow)
	policies = read(t, policy.Environment{}, cnp(fmt.Sprintf(allow, selectors(100))))
	checkProblem(t, "too many", policies[0], beyond, policy.ReasonInvalid, "more than 100")
	checkVerdict(t, "too many", policies, "in web>db 80/TCP", policy.Deny)
	checkVerdict(t, "too many", policies, "in world>db 80/TCP", policy.Allow)
	policies = read(t, policy.Environment{}, cnp(fmt.Sprintf(deny, selectors(98))))
	checkVerdict(t, "the most, of a deny", policies, "in web>db 80/TCP", policy.Allow)
	policies = read(t, policy.Environment{}, cnp(fmt.Sprintf(deny, selectors(120))))
	checkVerdict(t, "too many, of a deny", policies, "in web>db 80/TCP", policy.Deny)
	one := "endpointSelector: {}, ingress: [{fromRequires: [{matchExpressions: [{key: app, operator: NotIn, values: [%s]}]}]}, {fromEndpoints: [{}]}]"
	policies = read(t, policy.Environment{}, cnp(fmt.Sprintf(one, strings.Repeat("x, ", 100))))
	checkProblem(t, "too many values", policies[0], "spec.ingress[0].fromRequires[0]", policy.ReasonInvalid, "more than 100")
	checkVerdict(t, "too many values", policies, "in web>db 80/TCP", policy.Deny)
}
