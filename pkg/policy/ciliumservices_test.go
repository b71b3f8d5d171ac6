package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestFromCilium_Services has Services with a selector and without, in two namespaces.
func TestFromCilium_Services(t *testing.T) {
	t.Parallel()
	var all []*k8s.Service
	addrs := map[string][]netip.Addr{}
	put := func(namespace, name, labels, selects string, addresses ...string) {
		all = append(all, &k8s.Service{Namespace: namespace, Name: name, AllLabels: labels, Selects: selects})
		for _, a := range addresses {
			addrs[namespace+"/"+name] = append(addrs[namespace+"/"+name], netip.MustParseAddr(a))
		}
	}
	put("red", "web", "role=front,tier=a", "app=web")
	put("green", "web", "role=front", "app=web")
	put("red", "outside", "role=bank", "", "203.0.113.1", "2001:db8::1", "10.0.0.11", "fd00::11")
	put("green", "outside", "", "", "203.0.113.129", "2001:db8:0:1::1")
	put("red", "empty", "", "")
	env := policy.Environment{Services: func(c policy.ServiceChoice) (list []policy.Service) {
		for _, s := range all {
			if c.Includes(s) {
				list = append(list, policy.Service{Namespace: s.Namespace, Selects: s.Selects, Addrs: addrs[s.Key()]})
			}
		}
		return list
	}}
	const anything = "egress: [{toEntities: [all]}]"
	out := func(service string) string {
		return cnp("endpointSelector: {}, egress: [{toServices: [{" + service + "}]}]")
	}
	deny := func(service string) string {
		return cnp("endpointSelector: {}, " + anything + ", egressDeny: [{toServices: [{" + service + "}]}]")
	}
	for _, c := range []semantics{
		{name: "pods behind a Service", policies: out("k8sService: {serviceName: web, namespace: red}"), allow: []string{"out db>web 80/TCP", "out db>web 8080/UDP"},
			deny: []string{"out db>green 80/TCP", "out web>db 80/TCP", "out db>world 80/TCP", "out db>host 80/TCP"}},
		{name: "of another namespace", policies: out("k8sService: {serviceName: web, namespace: green}"), allow: []string{"out db>green 80/TCP"}, deny: []string{"out db>web 80/TCP", "out db>liar 80/TCP"}},
		{name: "without a namespace, a rule that allows means its own", policies: out("k8sService: {serviceName: web}"), allow: []string{"out db>web 80/TCP"}, deny: []string{"out db>green 80/TCP"}},
		{name: "and one that denies any", policies: deny("k8sService: {serviceName: web}"), deny: []string{"out db>web 80/TCP", "out db>green 80/TCP"}, allow: []string{"out web>db 80/TCP"}},
		{name: "a policy of the cluster means any", policies: ccnp("endpointSelector: {}, egress: [{toServices: [{k8sService: {serviceName: web}}]}]"), allow: []string{"out db>web 80/TCP", "out db>green 80/TCP"},
			deny: []string{"out web>db 80/TCP"}},
		{name: "addresses", policies: out("k8sService: {serviceName: outside, namespace: red}"), allow: []string{"out db>world 80/TCP"}, deny: []string{"out db>world2 80/TCP", "out db>web 80/TCP"}},
		{name: "by labels", policies: out("k8sServiceSelector: {selector: {matchLabels: {role: front}}, namespace: green}"), allow: []string{"out db>green 80/TCP"}, deny: []string{"out db>web 80/TCP"}},
		{name: "by labels with a source, which does not matter", policies: out("k8sServiceSelector: {selector: {matchExpressions: [{key: \"any:role\", operator: In, values: [front, bank]}]}}"),
			allow: []string{"out db>web 80/TCP", "out db>world 80/TCP"}, deny: []string{"out db>green 80/TCP", "out db>world2 80/TCP"}},
		{name: "by a label that they lack", policies: out("k8sServiceSelector: {selector: {matchExpressions: [{key: role, operator: DoesNotExist}]}, namespace: green}"),
			allow: []string{"out db>world2 80/TCP"}, deny: []string{"out db>green 80/TCP", "out db>world 80/TCP"}},
		{name: "on ports", policies: cnp("endpointSelector: {}, egress: [{toServices: [{k8sService: {serviceName: web}}], toPorts: [{ports: [{port: \"80\"}]}]}]"),
			allow: []string{"out db>web 80/TCP"}, deny: []string{"out db>web 81/TCP"}},
		{name: "denied", policies: deny("k8sService: {serviceName: outside, namespace: red}"), deny: []string{"out db>world 80/TCP"}, allow: []string{"out db>world2 80/TCP", "out db>web 80/TCP"}},
		{name: "without endpoints", policies: out("k8sService: {serviceName: empty}"), deny: []string{"out db>world 80/TCP", "out db>web 80/TCP"}},
		{name: "one that does not exist denies nothing", policies: deny("k8sService: {serviceName: moon}"), allow: []string{"out db>world 80/TCP", "out db>web 80/TCP"}},
		{name: "narrowed by toRequires", policies: out("k8sService: {serviceName: web}") + cnp("endpointSelector: {}, egress: [{toRequires: [{matchLabels: {app: db}}]}]"), deny: []string{"out db>web 80/TCP"}},
	} {
		c.check(t, env)
	}
	for service, want := range map[string]struct{ path, reason, message string }{
		"k8sService: {serviceName: moon}":                             {"", policy.ReasonAbsent, "there is no such Service: this peer of the rule allows nothing"},
		"k8sServiceSelector: {selector: {matchLabels: {role: moon}}}": {"", policy.ReasonAbsent, "there is no such Service"},
		"":                                   {"", policy.ReasonInvalid, "one of k8sService and k8sServiceSelector"},
		"k8sService: {}":                     {"", policy.ReasonInvalid, "serviceName is empty"},
		"k8sServiceSelector: {}":             {"", policy.ReasonInvalid, "the selector is missing"},
		"k8sServiceSelector: {selector: {}}": {"", policy.ReasonInvalid, "the selector is empty"},
		"k8sService: {serviceName: web, port: 80}": {"", policy.ReasonInvalid, "port"},
		"k8sServices: {}":                          {".k8sServices", policy.ReasonUnsupported, "not supported"},
		"k8sService: {serviceName: web}, k8sServiceSelector: {selector: {matchLabels: {role: a}}}": {"", policy.ReasonInvalid, "one of k8sService and k8sServiceSelector"},
	} {
		p := read(t, env, out(service))[0]
		if len(p.Problems) != 1 || p.Problems[0].Path != "spec.egress[0].toServices[0]"+want.path || p.Problems[0].Reason != want.reason || !strings.Contains(p.Problems[0].Message, want.message) {
			t.Errorf("%s: %+v", service, p.Problems)
		}
		everybody := []string{"out db>world 80/TCP", "out db>web 80/TCP"}
		(&semantics{name: service, policies: out(service), deny: everybody}).check(t, env)
		if want.reason != policy.ReasonAbsent {
			(&semantics{name: "deny of " + service, policies: deny(service), deny: everybody}).check(t, env)
		}
	}
	if p := read(t, policy.Environment{}, out("k8sService: {serviceName: moon}"))[0]; len(p.Problems) > 0 {
		t.Errorf("where Services are not known: %+v", p.Problems)
	}
}
