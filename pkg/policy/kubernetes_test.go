package policy_test

import (
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

func TestFromKubernetes_Semantics(t *testing.T) {
	t.Parallel()
	for _, c := range []semantics{
		{name: "a policy that isolates ingress by default",
			policies: netpol("podSelector: {matchLabels: {app: db}}"),
			deny:     []string{"in web>db 80/TCP", "in world>db 80/TCP", "in host>db 80/TCP", "in web>db 0/echo"},
			allow:    []string{"out db>web 80/TCP", "in db>web 80/TCP", "in web>green 80/TCP"}},
		{name: "no policy types, with egress rules", policies: netpol("podSelector: {}, egress: []"),
			deny: []string{"in web>db 80/TCP"}, allow: []string{"out db>web 80/TCP"}},
		{name: "no policy types, with an egress rule", policies: netpol("podSelector: {}, egress: [{to: [{podSelector: {}}]}]"),
			deny: []string{"in web>db 80/TCP", "out db>world 80/TCP"}, allow: []string{"out db>web 80/TCP"}},
		{name: "egress only", policies: netpol("podSelector: {}, policyTypes: [Egress]"),
			deny: []string{"out db>web 80/TCP"}, allow: []string{"in web>db 80/TCP"}},
		{name: "rules of a direction without policy type", policies: netpol("podSelector: {}, policyTypes: [Egress], ingress: []"),
			deny: []string{"out db>web 80/TCP"}, allow: []string{"in web>db 80/TCP"}},
		{name: "an empty rule selects all peers", policies: netpol("podSelector: {}, ingress: [{}]"),
			allow: []string{"in web>db 80/TCP", "in world>db 1/UDP", "in host>db 80/SCTP", "in green>db 0/GRE", "in world>db 0/echo"}},
		{name: "an empty list of peers selects all peers", policies: netpol("podSelector: {}, ingress: [{from: [], ports: [{port: 80}]}]"),
			allow: []string{"in web>db 80/TCP", "in world>db 80/TCP"}, deny: []string{"in web>db 81/TCP", "in world>db 80/UDP"}},
		{name: "an empty pod selector is all pods of the namespace", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in liar>db 80/TCP", "in world>db 80/TCP", "in host>db 80/TCP"}},
		{name: "an empty namespace selector is all pods", policies: netpol("podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]"),
			allow: []string{"in web>db 80/TCP", "in green>db 80/TCP"}, deny: []string{"in world>db 80/TCP", "in host>db 80/TCP", "in init>db 80/TCP"}},
		{name: "pods by label", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP", "in green>db 80/TCP"}},
		{name: "In", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [x, web]}]}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP"}},
		{name: "NotIn, also without the label", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [back]}]}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP", "in world>db 80/TCP"}},
		{name: "Exists", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: tier, operator: Exists}]}}]}]"),
			allow: []string{"in db>web 80/TCP"}, deny: []string{"in web>db 80/TCP"}},
		{name: "DoesNotExist", policies: netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP", "in host>db 80/TCP"}},
		{name: "namespaces by label, which pods cannot imitate", policies: netpol("podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "namespaces without a label", policies: netpol("podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: env, operator: DoesNotExist}]}}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in world>db 80/TCP", "in host>db 80/TCP"}},
		{name: "both selectors of one peer", policies: netpol("podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}]"),
			allow: []string{"in green>db 80/TCP"}, deny: []string{"in web>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "two peers", policies: netpol("podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}, {podSelector: {matchLabels: {app: web}}}]}]"),
			allow: []string{"in green>db 80/TCP", "in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP"}},
		{name: "an ipBlock matches pods and nodes too", policies: netpol("podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}, {ipBlock: {cidr: 192.168.0.1/32}}]}]"),
			allow: []string{"in web>db 80/TCP", "in green>db 80/TCP", "in host>db 80/TCP"}, deny: []string{"in node>db 80/TCP", "in world>db 80/TCP"}, only: 4},
		{name: "except", policies: netpol(`podSelector: {}, egress: [{to: [{ipBlock: {cidr: "fd00::/16", except: ["fd00::1:0/112"]}}]}]`),
			allow: []string{"out db>web 80/TCP"}, deny: []string{"out db>green 80/TCP", "out db>world 80/TCP"}, only: 6},
		{name: "excluded and allowed by another rule",
			policies: netpol("podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.1.0/24]}}, {ipBlock: {cidr: 10.0.1.13/32}}]}]"),
			allow:    []string{"out db>web 80/TCP", "out db>green 80/TCP"}, deny: []string{"out db>liar 80/TCP"}, only: 4},
		{name: "everything of the other family", policies: netpol("podSelector: {}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]"),
			deny: []string{"out db>world 80/TCP", "out db>web 80/TCP"}, only: 6},
		{name: "ports of one protocol", policies: netpol("podSelector: {}, ingress: [{ports: [{port: 80}, {protocol: UDP}]}]"),
			allow: []string{"in web>db 80/TCP", "in web>db 1/UDP"}, deny: []string{"in web>db 81/TCP", "in web>db 80/SCTP", "in web>db 0/echo"}},
		{name: "endPort", policies: netpol("podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}]}]"),
			allow: []string{"in web>db 80/TCP", "in web>db 85/TCP", "in web>db 90/TCP"}, deny: []string{"in web>db 79/TCP", "in web>db 91/TCP", "in web>db 85/UDP"}},
		{name: "SCTP opens no TCP, and isolates", policies: netpol("podSelector: {}, ingress: [{ports: [{port: 80, protocol: SCTP}]}]"),
			allow: []string{"in web>db 80/SCTP"}, deny: []string{"in web>db 80/TCP", "in web>db 80/UDP"}},
		{name: "named ports of the subject", policies: netpol("podSelector: {}, ingress: [{ports: [{port: web}]}]"),
			allow: []string{"in db>web 8080/TCP", "in web>db 9090/TCP"}, deny: []string{"in db>web 9090/TCP", "in web>db 8080/TCP", "in db>web 8080/UDP"}},
		{name: "named ports of the peer", policies: netpol("podSelector: {}, egress: [{ports: [{port: web}]}]"),
			allow: []string{"out db>web 8080/TCP", "out web>db 9090/TCP"}, deny: []string{"out web>db 8080/TCP", "out web>green 8080/TCP", "out web>world 8080/TCP"}},
		{name: "a named port of another protocol", policies: netpol("podSelector: {}, ingress: [{ports: [{port: dns}]}, {ports: [{port: dns, protocol: UDP}]}]"),
			allow: []string{"in db>web 53/UDP"}, deny: []string{"in db>web 53/TCP", "in web>db 53/UDP"}},
		{name: "stacked policies add up",
			policies: netpol("podSelector: {}") + netpol("podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80}]}]") +
				netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 443}]}]"),
			allow: []string{"in web>db 80/TCP", "in web>db 443/TCP", "in world>db 80/TCP"}, deny: []string{"in world>db 443/TCP", "in db>web 80/TCP"}},
		{name: "the local host", policies: netpol("podSelector: {}"), options: policy.Options{AllowLocalhost: true},
			allow: []string{"in host>db 80/TCP"}, deny: []string{"in node>db 80/TCP", "in api>db 80/TCP"}},
		{name: "the local host is a peer of egress as any other", policies: netpol("podSelector: {}, policyTypes: [Egress]"),
			options: policy.Options{AllowLocalhost: true}, deny: []string{"out db>host 80/TCP"}},
		{name: "never", policies: netpol("podSelector: {}"), options: policy.Options{Mode: policy.Never}, allow: []string{"in web>db 80/TCP"}},
		{name: "always", policies: netpol("podSelector: {matchLabels: {app: db}}, ingress: [{}]"), options: policy.Options{Mode: policy.Always},
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in db>web 80/TCP", "out db>web 80/TCP", "out green>web 80/TCP"}},
		{name: "unknown peer", policies: netpol("podSelector: {}, ingress: [{}]"), deny: []string{"in unknown>db 80/TCP"},
			allow: []string{"out db>unknown 80/TCP"}},
		{name: "an unknown peer may be a denied one", policies: cnp("endpointSelector: {}, enableDefaultDeny: {ingress: false}, ingressDeny: [{fromEntities: [host]}], ingress: [{fromEntities: [all]}]"),
			deny: []string{"in unknown>db 80/TCP"}, allow: []string{"in world>db 80/TCP"}},
	} {
		c.check(t, policy.Environment{Cluster: "test"})
	}
}

// TestFromKubernetes_FailsClosed: a part that is invalid or cannot be enforced allows nothing, is reported, and does not affect other parts.
func TestFromKubernetes_FailsClosed(t *testing.T) {
	t.Parallel()
	hidden := func(label string) bool { return !strings.Contains(label, "tier") }
	for name, c := range map[string]struct{ spec, path, reason, message, allow, deny string }{
		"a bad CIDR": {"podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/33}}]}, {ports: [{port: 443}]}]",
			"spec.ingress[0]", policy.ReasonInvalid, "must be a CIDR", "in web>db 443/TCP", "in web>db 80/TCP"},
		"except equal to the range": {"podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]",
			"spec.ingress[0]", policy.ReasonInvalid, "strict subset", "", "in web>db 80/TCP"},
		"a bad selector": {"podSelector: {matchExpressions: [{key: app, operator: Like}]}, ingress: [{}]",
			"spec", policy.ReasonInvalid, "isolates the pods that it may mean", "in web>green 80/TCP", "in web>db 80/TCP"},
		"an unknown peer": {"podSelector: {}, ingress: [{from: [{serviceSelector: {}}]}]",
			"spec", policy.ReasonInvalid, "unknown field", "", "in web>db 80/TCP"},
		"a label outside identities": {"podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {tier: back}}}, {podSelector: {matchLabels: {app: web}}}]}]",
			"spec.ingress[0].from[0]", policy.ReasonLabel, `"k8s:tier" is not part of identities`, "in web>db 80/TCP", "in green>db 80/TCP"},
		"the absence of such a label": {"podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}]}]",
			"spec.ingress[0].from[0]", policy.ReasonLabel, "allows nothing", "", "in web>db 80/TCP"},
		"such a label of subjects does no harm": {"podSelector: {matchLabels: {tier: back}}",
			"", "", "", "in db>web 80/TCP", "in web>db 80/TCP"},
	} {
		policies := read(t, policy.Environment{Keeps: hidden}, netpol(c.spec))
		checkProblem(t, name, policies[0], c.path, c.reason, c.message)
		checkVerdict(t, name, policies, c.allow, policy.Allow)
		checkVerdict(t, name, policies, c.deny, policy.Deny)
	}
}

// checkProblem expects a problem, or none if reason is empty.
func checkProblem(t *testing.T, name string, p *policy.Policy, path, reason, message string) {
	t.Helper()
	if reason == "" {
		if len(p.Problems) > 0 {
			t.Errorf("%s: problems %+v", name, p.Problems)
		}
		return
	}
	for _, problem := range p.Problems {
		if problem.Path == path && problem.Reason == reason && strings.Contains(problem.Message, message) &&
			problem.Invalid == (reason == policy.ReasonInvalid) {
			return
		}
	}
	t.Errorf("%s: problems %+v, want %s of %s with %q", name, p.Problems, reason, path, message)
}

func checkVerdict(t *testing.T, name string, policies []*policy.Policy, question string, want policy.Verdict) {
	t.Helper()
	if question == "" {
		return
	}
	for family := range 2 {
		if got := policy.Evaluate(policies, policy.Options{}, ask(t, question, family)); got.Verdict != want {
			t.Errorf("%s: %s: %+v, want %s", name, question, got, want)
		}
	}
}

// TestAudit: a policy in audit mode changes the audited verdict and not the enforced one.
func TestAudit(t *testing.T) {
	t.Parallel()
	audited := strings.Replace(netpol("podSelector: {}"), "metadata: {", "metadata: {annotations: {policy.waggle.io/mode: audit}, ", 1)
	policies := read(t, policy.Environment{}, audited)
	got := policy.Evaluate(policies, policy.Options{}, ask(t, "in web>db 80/TCP", 0))
	if got.Verdict != policy.Allow || got.Basis != policy.NotIsolated || got.Audited.Verdict != policy.Deny || len(got.Audited.IsolatedBy) != 1 ||
		!got.Audited.IsolatedBy[0].Audit {
		t.Errorf("%+v", got)
	}
	odd := strings.Replace(audited, "mode: audit", "mode: adit", 1)
	policies = read(t, policy.Environment{}, odd)
	checkProblem(t, "a mode that does not exist", policies[0], "metadata.annotations", policy.ReasonInvalid, `"adit": the policy is not in audit mode`)
	checkVerdict(t, "a mode that does not exist", policies, "in web>db 80/TCP", policy.Deny)
}
