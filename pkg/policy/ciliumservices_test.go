package policy_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// withServices returns an environment with some Services, by "namespace/name". The label "hidden" is not part of identities.
func withServices(services map[string]policy.Service) policy.Environment {
	return policy.Environment{Services: func(n policy.ServiceName) policy.Service { return services[n.String()] },
		Keeps: func(label string) bool { return label != "k8s:hidden" }}
}

func selects(text string) policy.Service { return policy.ServiceOf(&k8s.Service{Selects: text}) }

// someLabels is a selector with n labels.
func someLabels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("key-%d=x", i))
	}
	return strings.Join(all, ",")
}

// someServices are of the namespaces red and green.
func someServices() policy.Environment {
	return withServices(map[string]policy.Service{
		"red/db": selects("app=db,tier=back"), "red/web": selects("app=web"), "green/web": selects("app=web"), "green/api": selects("app=web"),
		"red/bare": {Found: true}, "red/external": {Found: true, External: true, Selects: "app=db"}, "red/hidden": selects("app=db,hidden=x"),
		"red/long": selects(someLabels(21)), "red/longest": selects(someLabels(20)), "red/malformed": selects("app"), "red/doubled": selects("app=db,app=web"),
		"green/hidden": selects("hidden=x"),
	})
}

const allowAll = ", egress: [{toEntities: [all]}]"

func toServices(items string) string {
	return "endpointSelector: {}, egress: [{toServices: [" + items + "]}]"
}
func denyServices(items string) string {
	return "endpointSelector: {}, egressDeny: [{toServices: [" + items + "]}]" + allowAll
}

func TestFromCilium_Services(t *testing.T) {
	t.Parallel()
	const db, webOfGreen = "{k8sService: {serviceName: db, namespace: red}}", "{k8sService: {serviceName: web, namespace: green}}"
	for _, c := range []semantics{
		{name: "the pods of a Service", policies: cnp(toServices(db)), allow: []string{"out web>db 80/TCP", "out web>db 53/UDP"},
			deny: []string{"out db>web 80/TCP", "out web>green 80/TCP", "out web>liar 80/TCP", "out web>world 80/TCP", "out web>host 80/TCP"}},
		{name: "without a namespace: the policy's own", policies: cnp(toServices("{k8sService: {serviceName: web}}")),
			allow: []string{"out db>web 80/TCP"}, deny: []string{"out db>green 80/TCP"}},
		{name: "of another namespace", policies: cnp(toServices(webOfGreen)), allow: []string{"out db>green 80/TCP"}, deny: []string{"out db>web 80/TCP"}},
		{name: "of a policy of the cluster", policies: ccnp(toServices(db + ", " + webOfGreen)), allow: []string{"out web>db 80/TCP", "out green>green 80/TCP"},
			deny: []string{"out green>web 80/TCP"}},
		{name: "ports are pod ports", policies: cnp("endpointSelector: {}, egress: [{toServices: [" + db + "], toPorts: [{ports: [{port: web, protocol: TCP}]}]}]"),
			allow: []string{"out web>db 9090/TCP"}, deny: []string{"out web>db 80/TCP"}},
		{name: "denied", policies: cnp(denyServices(db)), deny: []string{"out web>db 80/TCP"}, allow: []string{"out db>web 80/TCP", "out web>green 80/TCP", "out web>world 80/TCP"}},
		{name: "beside toRequires", policies: cnp("endpointSelector: {}, egress: [{toServices: [" + db + ", " + webOfGreen + "], toRequires: [{matchLabels: {\"k8s:io.kubernetes.pod.namespace\": red}}]}]"),
			allow: []string{"out web>db 80/TCP"}, deny: []string{"out web>green 80/TCP"}},
		{name: "an empty list is no peer", policies: cnp(toServices("")), deny: []string{"out web>db 80/TCP", "out web>world 80/TCP"}},
	} {
		c.check(t, someServices())
		for _, p := range read(t, someServices(), c.policies) {
			if len(p.Problems) > 0 {
				t.Errorf("%s: %+v", c.name, p.Problems)
			}
		}
	}
}

// TestFromCilium_ServicesThatMatchNothing: a Service that stands for no peer allows nothing and denies nothing; the other peers of the rule count.
func TestFromCilium_ServicesThatMatchNothing(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ reason, message string }{
		"moon":      {policy.ReasonAbsent, `there is no Service "red/moon": this peer of the rule DOES nothing until there is one`},
		"external":  {policy.ReasonUnsupported, `the Service "red/external" is an ExternalName: this peer of the rule DOES nothing; use toCIDR`},
		"long":      {policy.ReasonInvalid, `(it has 21 labels, and 20 are supported): this peer of the rule DOES nothing; correct the Service`},
		"malformed": {policy.ReasonInvalid, `(it is malformed at "app"): this peer of the rule DOES nothing`},
		"doubled":   {policy.ReasonInvalid, `(it is malformed at "app=web"): this peer of the rule DOES nothing`},
	} {
		items := "{k8sService: {serviceName: " + name + ", namespace: red}}, {k8sService: {serviceName: web, namespace: green}}"
		for _, c := range []struct {
			does string
			semantics
		}{
			{"allows", semantics{policies: cnp(toServices(items)), allow: []string{"out web>green 80/TCP"}, deny: []string{"out web>db 80/TCP", "out web>world 80/TCP"}}},
			{"denies", semantics{policies: ccnp(denyServices(items)), deny: []string{"out web>green 80/TCP"}, allow: []string{"out web>db 80/TCP", "out web>world 80/TCP"}}},
		} {
			c.name = c.does + " " + name
			c.check(t, someServices())
			p := read(t, someServices(), c.policies)[0]
			if len(p.Problems) != 1 || p.Problems[0].Reason != want.reason || !strings.Contains(p.Problems[0].Message, strings.Replace(want.message, "DOES", c.does, 1)) ||
				!strings.HasSuffix(p.Problems[0].Path, "[0].toServices[0].k8sService") || len(p.Services) != 2 {
				t.Errorf("%s: %+v refers to %v", c.name, p.Problems, p.Services)
			}
		}
	}
}

// TestFromCilium_FaultsOfToServices_FailClosed: with a fault of the policy's text, or while Services cannot be read, a rule allows nothing or denies every peer.
func TestFromCilium_FaultsOfToServices_FailClosed(t *testing.T) {
	t.Parallel()
	unread := someServices()
	unread.ServicesUnread = true
	unreadSlices := someServices()
	unreadSlices.SlicesUnread = true
	each := policy.Environment{Services: func(policy.ServiceName) policy.Service { return selects("app=web") }} // every Service exists
	var different, references strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&different, "{k8sService: {serviceName: s%d, namespace: red}}, ", i)
	}
	for range 4001 {
		references.WriteString("{k8sService: {serviceName: web, namespace: red}}, ")
	}
	for name, c := range map[string]struct {
		env                 policy.Environment
		items, reason, says string
	}{
		"slices unread":       {unreadSlices, "{k8sService: {serviceName: bare, namespace: red}}", policy.ReasonAbsent, "EndpointSlices cannot be read"},
		"both":                {someServices(), "{k8sServiceSelector: {selector: {}}, k8sService: {serviceName: web}}", policy.ReasonInvalid, "must have one of"},
		"neither":             {someServices(), "{}", policy.ReasonInvalid, "must have one of"},
		"no name":             {someServices(), "{k8sService: {namespace: red}}", policy.ReasonInvalid, "serviceName is empty"},
		"an unknown field":    {someServices(), "{k8sService: {serviceName: web, port: 80}}", policy.ReasonInvalid, "unknown field"},
		"unread":              {unread, "{k8sService: {serviceName: web, namespace: red}}", policy.ReasonAbsent, "until they can; install the permissions of this version"},
		"too many Services":   {each, different.String(), policy.ReasonInvalid, "more than 1000 Services"},
		"too many references": {someServices(), references.String(), policy.ReasonInvalid, "more than 4000 times"},
	} {
		policies := cnp("endpointSelector: {}, egress: [{toServices: ["+c.items+"]}]") + cnp(denyServices(c.items))
		parsed := read(t, c.env, policies)
		if p := parsed[0]; len(p.Problems) == 0 || p.Problems[0].Reason != c.reason || !strings.Contains(p.Problems[0].Message, c.says) {
			t.Errorf("%s: %+v", name, p.Problems)
		}
		if len(parsed[0].Parts[0].Rules) != 0 || !parsed[0].Parts[0].IsolatesEgress {
			t.Errorf("%s allows %+v", name, parsed[0].Parts)
		}
		if rules := parsed[1].Parts[0].Rules; len(rules) != 2 || !rules[1].Deny || !rules[1].Peers.Any {
			t.Errorf("%s denies %d rules", name, len(rules))
		}
	}
	const nameless = "{k8sService: {serviceName: web}}"
	for name, policies := range map[string]string{"a deny rule of the cluster": ccnp(denyServices(nameless)), "a deny rule of a namespace": cnp(denyServices(nameless))} {
		p := read(t, someServices(), policies)[0]
		if len(p.Problems) != 1 || !p.Problems[0].Invalid || p.Problems[0].Message != "the namespace of the Service is missing: the rule denies all that it may mean; name it" ||
			p.Problems[0].Path != "spec.egressDeny[0].toServices[0].k8sService" || len(p.Services) != 0 {
			t.Errorf("without a namespace in %s: %+v, %v", name, p.Problems, p.Services)
		}
		if rules := p.Parts[0].Rules; len(rules) != 2 || !rules[1].Deny || !rules[1].Peers.Any {
			t.Errorf("without a namespace, %s has %+v", name, rules)
		}
	}
	if p := read(t, someServices(), ccnp(toServices(nameless)))[0]; len(p.Problems) != 1 || len(p.Parts[0].Rules) != 0 {
		t.Errorf("without a namespace in an allow rule of the cluster: %+v", p)
	}
	if p := read(t, unread, cnp(toServices("{k8sService: {serviceName: web}}")))[0]; len(p.Services) != 1 {
		t.Errorf("while Services cannot be read, the policy refers to %v", p.Services)
	}
}

// TestFromCilium_ServiceWithHiddenLabel_DeniesWithinItsNamespace: a label that is not part of identities allows nothing, and does not narrow a deny, which never goes beyond the
// namespace of the Service.
func TestFromCilium_ServiceWithHiddenLabel_DeniesWithinItsNamespace(t *testing.T) {
	t.Parallel()
	const hidden = "{k8sService: {serviceName: hidden, namespace: red}}"
	for _, c := range []semantics{
		{name: "allowed", policies: cnp(toServices(hidden)), deny: []string{"out web>db 80/TCP", "out db>web 80/TCP"}},
		{name: "denied", policies: cnp(denyServices(hidden)), deny: []string{"out web>db 80/TCP"}, allow: []string{"out db>web 80/TCP", "out web>world 80/TCP"}},
		{name: "nothing else is selected", policies: ccnp(denyServices("{k8sService: {serviceName: hidden, namespace: green}}")), deny: []string{"out web>green 80/TCP", "out web>liar 80/TCP"},
			allow: []string{"out web>db 80/TCP", "out web>world 80/TCP"}},
	} {
		c.check(t, someServices())
		if p := read(t, someServices(), c.policies)[0]; len(p.Problems) != 1 || p.Problems[0].Reason != policy.ReasonLabel {
			t.Errorf("%s: %+v", c.name, p.Problems)
		}
	}
	// Deny rules and allow rules of one policy use different selectors.
	both := "endpointSelector: {}, egress: [{toServices: [" + hidden + "]}], egressDeny: [{toServices: [" + hidden + "]}]"
	p := read(t, someServices(), cnp(both))[0]
	for _, r := range p.Parts[0].Rules {
		want := 3
		if r.Deny {
			want = 2
		}
		if n := len(r.Peers.List[0].Labels.Requirements); n != want {
			t.Errorf("%s has %d requirements", r.Path, n)
		}
	}
}

// TestFromCilium_NamespaceNotInIdentities_ServicesMatchNothing: the labels of a selector would select pods of all namespaces, so a Service matches nothing.
func TestFromCilium_NamespaceNotInIdentities_ServicesMatchNothing(t *testing.T) {
	t.Parallel()
	for name, keeps := range map[string]func(string) bool{
		"the namespace": func(label string) bool { return label != "k8s:io.kubernetes.pod.namespace" },
		"every label":   func(string) bool { return false },
	} {
		env := someServices()
		env.Keeps = keeps
		for _, c := range []semantics{
			{name: "denied", policies: ccnp(denyServices("{k8sService: {serviceName: web, namespace: green}}")),
				allow: []string{"out web>green 80/TCP", "out web>db 80/TCP", "out web>world 80/TCP"}},
			{name: "allowed", policies: ccnp(toServices("{k8sService: {serviceName: web, namespace: green}}")), deny: []string{"out web>green 80/TCP", "out db>web 80/TCP"}},
		} {
			c.name += " without " + name
			c.check(t, env)
			p := read(t, env, c.policies)[0]
			if len(p.Problems) != 1 || p.Problems[0].Reason != policy.ReasonLabel || !strings.Contains(p.Problems[0].Message, "nothing; add the label to --labels") {
				t.Errorf("%s: %+v", c.name, p.Problems)
			}
		}
	}
}

// TestFromCilium_ManyRequirementsOfServices_MatchNothing: references beyond 10,000 requirements match nothing,
// whether or not they refer to the same Service, and the others count. The owners of Services cause it, so no rule denies more because of it.
func TestFromCilium_ManyRequirementsOfServices_MatchNothing(t *testing.T) {
	t.Parallel()
	const longest, db = "{k8sService: {serviceName: longest, namespace: red}}, ", "{k8sService: {serviceName: db, namespace: red}}"
	full := strings.Repeat(longest, 476) // 21 requirements each: 4 are left
	for _, c := range []struct {
		items          string
		peers, beyond  int
		services, size int
	}{
		{full, 476, 0, 1, 476 * len(someLabels(20))},
		{full + db, 477, 0, 2, 476*len(someLabels(20)) + len("app=db,tier=back")},
		{full + longest + db + ", " + db, 477, 2, 2, 477*len(someLabels(20)) + 2*len("app=db,tier=back")},
	} {
		for name, policies := range map[string]string{"denies": ccnp(denyServices(c.items)), "allows": ccnp(toServices(c.items))} {
			p := read(t, someServices(), policies)[0]
			rule := p.Parts[0].Rules[len(p.Parts[0].Rules)-1]
			if rule.Peers.Any || len(rule.Peers.List) != c.peers || len(p.Services) != c.services || len(p.Problems) != c.beyond {
				t.Errorf("the policy %s %d peers of %d Services, want %d of %d: %+v", name, len(rule.Peers.List), len(p.Services), c.peers, c.services, p.Problems)
			}
			for _, problem := range p.Problems {
				if problem.Reason != policy.ReasonUnsupported || !strings.Contains(problem.Message, "more than 10000 requirements: this peer of the rule "+name+" nothing") {
					t.Errorf("%+v", problem)
				}
			}
			if n := p.ServiceBytes(someServices().Services, nil); n != c.size {
				t.Errorf("the Services of the policy count %d bytes, want %d", n, c.size)
			}
		}
	}
}

// TestFromCilium_AllowRules_LeaveDenyRulesTheirRequirements: the owners of Services to which allow rules refer must not make a deny rule match nothing.
func TestFromCilium_AllowRules_LeaveDenyRulesTheirRequirements(t *testing.T) {
	t.Parallel()
	const longest, db = "{k8sService: {serviceName: longest, namespace: red}}, ", "{k8sService: {serviceName: db, namespace: red}}"
	p := read(t, someServices(), ccnp("endpointSelector: {}, egress: [{toServices: ["+strings.Repeat(longest, 477)+db+"]}], egressDeny: [{toServices: ["+db+"]}]"))[0]
	var denied int
	for _, rule := range p.Parts[0].Rules {
		if rule.Deny {
			denied += len(rule.Peers.List)
		}
	}
	if denied != 1 || len(p.Problems) != 1 { // the 477th reference matches nothing
		t.Errorf("the policy denies %d peers, problems %+v", denied, p.Problems)
	}
}

// TestServiceOf_LongSelector_IsNotKept: two such selectors with the same number of labels have the same meaning.
func TestServiceOf_LongSelector_IsNotKept(t *testing.T) {
	t.Parallel()
	long := selects(someLabels(1000))
	if len(long.Selects) > 20 || long != selects(strings.Repeat("a=b,", 999)+"a=b") || policy.ServiceOf(&k8s.Service{Selects: long.Selects}) != long {
		t.Errorf("%+v", long)
	}
	if s := selects(someLabels(20)); s.Selects != someLabels(20) {
		t.Errorf("%+v", s)
	}
}

// TestFromCilium_ReferencesToAService_ShareItsSelector: the policy lists the Service once.
func TestFromCilium_ReferencesToAService_ShareItsSelector(t *testing.T) {
	t.Parallel()
	const web, db = "{k8sService: {serviceName: web}}", "{k8sService: {serviceName: db, namespace: red}}"
	const webOfRed = "{k8sService: {serviceName: web, namespace: red}}"
	p := read(t, someServices(), cnp("endpointSelector: {}, egress: [{toServices: ["+web+", "+db+"]}, {toServices: ["+webOfRed+"]}], "+
		"egressDeny: [{toServices: ["+webOfRed+"]}]"))[0]
	if want := []policy.ServiceName{{Namespace: "red", Name: "db"}, {Namespace: "red", Name: "web"}}; !reflect.DeepEqual(p.Services, want) {
		t.Errorf("the policy refers to %v", p.Services)
	}
	rules := p.Parts[0].Rules
	first := rules[0].Peers.List[0].Labels
	if len(rules) != 3 || rules[1].Peers.List[0].Labels != first || rules[2].Peers.List[0].Labels != first {
		t.Error("the selector is not shared")
	}
}
