package policy_test

import (
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

// TestEvaluate_NamesNearestMiss: a rule that misses only by its peers, or only by its ports, is named with the reason.
func TestEvaluate_NamesNearestMiss(t *testing.T) {
	t.Parallel()
	const port80 = `toPorts: [{ports: [{port: "80", protocol: TCP}]}]`
	for _, c := range []struct{ policies, question, why string }{
		{netpol("podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]"), "in web>db 80/TCP", "the peer does not have k8s:app=db"},
		{netpol("podSelector: {}, ingress: [{from: [{podSelector: {}}]}]"), "in green>db 80/TCP", "the peer does not have k8s:io.kubernetes.pod.namespace=red"},
		{netpol("podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}]}]"), "in web>db 80/TCP", "10.0.0.11 is not in 10.1.0.0/16"},
		{netpol("podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/24]}}]}]"), "in web>db 80/TCP", "10.0.0.11 is in 10.0.0.0/24, which is excepted"},
		{netpol("podSelector: {}, ingress: [{ports: [{port: 80}]}]"), "in web>db 81/TCP", "it is for 80/TCP, not 81"},
		{netpol("podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90, protocol: UDP}]}]"), "in web>db 81/TCP", "it is for 80-90/UDP, not TCP"},
		{netpol("podSelector: {}, ingress: [{ports: [{protocol: SCTP}]}]"), "in web>db 81/TCP", "it is for all of SCTP, not TCP"},
		{netpol("podSelector: {}, ingress: [{ports: [{port: admin}]}]"), "in web>db 80/TCP", "no peer serves the port named admin/TCP"},
		{netpol("podSelector: {}, ingress: [{ports: [{port: web}]}]"), "in web>db 80/TCP", "the port named web/TCP is 9090, not 80"},
		{netpol("podSelector: {}, ingress: [{ports: [{port: 1}, {port: 2}, {port: 3}, {port: 4}, {port: 5}]}]"), "in web>db 80/TCP", "it is for 3/TCP, not 80; and 2 more"},
		{cnp("endpointSelector: {}, ingress: [{fromCIDR: [10.0.0.0/8]}]"), "in web>db 80/TCP", "but it is an endpoint's, and CIDRs of Cilium's policies match none"},
		{cnp("endpointSelector: {}, ingress: [{fromCIDR: [192.168.0.0/24]}]"), "in host>db 80/TCP", "with --policy-cidr-match-mode=nodes"},
		{cnp("endpointSelector: {}, ingress: [{fromEntities: [host, health]}]"), "in web>db 80/TCP", "the peer is none of host; the peer is none of health"},
		{cnp("endpointSelector: {}, ingress: [{fromEntities: [none]}]"), "in web>db 80/TCP", "it chooses no peer"},
		{cnp("endpointSelector: {}, ingressDeny: [{fromEntities: [world], " + port80 + "}]"), "in web>db 80/TCP", "the peer is none of world, world-ipv4, world-ipv6"},
	} {
		got := policy.Evaluate(read(t, policy.Environment{}, c.policies), policy.Options{}, ask(t, c.question, 0))
		if len(got.Nearly) != 1 || !strings.Contains(got.Nearly[0].Why, c.why) {
			t.Errorf("%s%s: %+v, want %q", c.policies, c.question, got.Nearly, c.why)
		}
	}
	got := policy.Evaluate(read(t, policy.Environment{}, cnp("endpointSelector: {}, ingress: [{fromEntities: [host], "+port80+"}]")), policy.Options{}, ask(t, "in web>db 81/TCP", 0))
	if len(got.Nearly) > 0 {
		t.Errorf("a rule for others and another port is not near: %+v", got.Nearly)
	}
}

// TestEvaluate_NamesTheRules: the result names the deciding rules and the isolating policies.
func TestEvaluate_NamesTheRules(t *testing.T) {
	t.Parallel()
	policies := read(t, policy.Environment{}, netpol("podSelector: {}, ingress: [{ports: [{port: 1}]}, {from: [{podSelector: {}}]}]")+
		specs2()+ccnp("endpointSelector: {}, ingressDeny: [{fromEntities: [world]}], enableDefaultDeny: {ingress: false}"))
	got := policy.Evaluate(policies, policy.Options{}, ask(t, "in web>db 80/TCP", 0))
	if got.Verdict != policy.Allow || got.Basis != policy.ByRule || len(got.Decided) != 1 || got.Decided[0].Path != "spec.ingress[1]" ||
		!strings.HasPrefix(got.Decided[0].Policy.String(), "NetworkPolicy red/p") || len(got.IsolatedBy) != 2 || got.IsolatedBy[1].Path != "specs[0]" {
		t.Errorf("%+v", got)
	}
	got = policy.Evaluate(policies, policy.Options{}, ask(t, "in world>db 1/TCP", 0))
	if got.Verdict != policy.Deny || len(got.Decided) != 1 || !got.Decided[0].Deny || got.Decided[0].Path != "spec.ingressDeny[0]" {
		t.Errorf("%+v", got)
	}
}
