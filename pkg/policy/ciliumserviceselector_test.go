package policy_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// slice returns a slice of a Service with some addresses.
func slice(namespace, service string, addresses ...string) *k8s.EndpointSlice {
	s := &k8s.EndpointSlice{Namespace: namespace, Name: service + "-1", Service: service}
	for _, text := range addresses {
		s.Endpoints = append(s.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{netip.MustParseAddr(text)}})
	}
	return s
}

// withRows returns an environment with some Services, which are sorted by name, and slices. The label "hidden" is not part of identities.
func withRows(services []*k8s.Service, all ...*k8s.EndpointSlice) policy.Environment {
	env := withServices(nil)
	env.Services = func(n policy.ServiceName) policy.Service {
		i := slices.IndexFunc(services, func(s *k8s.Service) bool { return s.Namespace == n.Namespace && s.Name == n.Name })
		if i < 0 {
			return policy.Service{}
		}
		return policy.ServiceOf(services[i]).WithAddresses(func(yield func(*k8s.EndpointSlice) bool) {
			for _, s := range all {
				if s.Namespace == n.Namespace && s.Service == n.Name && !yield(s) {
					return
				}
			}
		})
	}
	env.ServicesIn = func(namespace string) iter.Seq2[string, string] {
		return func(yield func(string, string) bool) {
			for _, s := range services {
				if s.Namespace == namespace && !yield(s.Name, s.Labelled) {
					return
				}
			}
		}
	}
	return env
}

// someRows are Services with labels and slices: "outside" and "mixed" have no selector.
func someRows() policy.Environment {
	row := func(namespace, name, labelled, selects string) *k8s.Service {
		return &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP", Labelled: labelled, Selects: selects}
	}
	return withRows([]*k8s.Service{row("green", "api", "tier=back", "app=web"), row("red", "db", "role=store,tier=back", "app=db"), row("red", "empty", "tier=none", ""),
		{Namespace: "red", Name: "external", Type: "ExternalName", Labelled: "kind=external"}, row("red", "hidden", "kind=hidden", "app=web,hidden=x"),
		row("red", "mixed", "tier=mixed", ""), row("red", "outside", "kind=external,tier=back", ""), row("red", "web", "tier=front", "app=web")},
		slice("red", "outside", "203.0.113.1", "2001:db8::1"), slice("red", "mixed", "203.0.113.1", "2001:db8::1", "10.0.0.12", "fd00::12", "192.168.0.2", "fd01::2"),
		slice("green", "outside", "203.0.113.129", "2001:db8:0:1::1"))
}

func byLabels(labels string) string {
	return "{k8sServiceSelector: {selector: {matchLabels: {" + labels + "}}, namespace: red}}"
}

// TestFromCilium_ServicesWithoutSelector: such a Service stands for the addresses in its slices, which match peers outside the cluster.
func TestFromCilium_ServicesWithoutSelector(t *testing.T) {
	t.Parallel()
	const outside, mixed = "{k8sService: {serviceName: outside, namespace: red}}", "{k8sService: {serviceName: mixed, namespace: red}}"
	for _, c := range []semantics{
		{name: "allowed", policies: cnp(toServices(outside)), allow: []string{"out web>world 80/TCP", "out db>world 53/UDP"},
			deny: []string{"out web>world2 80/TCP", "out web>db 80/TCP", "out web>node 80/TCP", "out web>host 80/TCP"}},
		{name: "addresses of pods and nodes match none", policies: cnp(toServices(mixed)), allow: []string{"out web>world 80/TCP"}, deny: []string{"out web>db 80/TCP", "out web>node 80/TCP"}},
		{name: "nodes with the option", policies: cnp(toServices(mixed)), allow: []string{"out web>world 80/TCP", "out web>node 80/TCP"}, deny: []string{"out web>db 80/TCP"},
			options: policy.Options{CIDRMatchesNodes: true}},
		{name: "ports are endpoint ports", policies: cnp("endpointSelector: {}, egress: [{toServices: [" + outside + "], toPorts: [{ports: [{port: \"80\", protocol: TCP}]}]}]"),
			allow: []string{"out web>world 80/TCP"}, deny: []string{"out web>world 81/TCP"}},
		{name: "denied", policies: ccnp(denyServices(outside)), deny: []string{"out web>world 80/TCP", "out green>world 80/TCP"}, allow: []string{"out web>world2 80/TCP", "out web>db 80/TCP"}},
		{name: "toRequires does not narrow addresses", policies: cnp("endpointSelector: {}, egress: [{toServices: [" + outside + "], toRequires: [{matchLabels: {app: db}}]}]"),
			allow: []string{"out web>world 80/TCP"}, deny: []string{"out web>db 80/TCP"}},
		{name: "without endpoints", policies: cnp(toServices("{k8sService: {serviceName: empty}}")), deny: []string{"out web>world 80/TCP", "out web>db 80/TCP"}},
		{name: "a deny without endpoints", policies: cnp(denyServices("{k8sService: {serviceName: empty, namespace: red}}")), allow: []string{"out web>world 80/TCP", "out web>db 80/TCP"}},
	} {
		c.check(t, someRows())
		if p := read(t, someRows(), c.policies)[0]; len(p.Problems) > 0 {
			t.Errorf("%s: %+v", c.name, p.Problems)
		}
	}
}

func TestFromCilium_ServicesByLabels(t *testing.T) {
	t.Parallel()
	expression := func(text string) string {
		return "{k8sServiceSelector: {selector: {matchExpressions: [{" + text + "}]}, namespace: red}}"
	}
	const ofGreen = "{k8sServiceSelector: {selector: {}, namespace: green}}"
	for _, c := range []semantics{
		{name: "pods and addresses", policies: cnp(toServices(byLabels("tier: back"))), allow: []string{"out web>db 80/TCP", "out web>world 80/TCP"},
			deny: []string{"out db>web 80/TCP", "out web>green 80/TCP", "out web>world2 80/TCP", "out web>node 80/TCP"}},
		{name: "several labels", policies: cnp(toServices(byLabels("tier: back, role: store"))), allow: []string{"out web>db 80/TCP"}, deny: []string{"out web>world 80/TCP"}},
		{name: "a key with a source", policies: cnp(toServices(byLabels("\"k8s:tier\": front"))), allow: []string{"out db>web 80/TCP"}, deny: []string{"out web>db 80/TCP"}},
		{name: "without a namespace: the policy's own", policies: cnp(toServices("{k8sServiceSelector: {selector: {matchLabels: {tier: back}}}}")),
			allow: []string{"out web>db 80/TCP", "out web>world 80/TCP"}, deny: []string{"out web>green 80/TCP"}},
		{name: "every Service of another namespace", policies: cnp(toServices(ofGreen)), allow: []string{"out db>green 80/TCP"}, deny: []string{"out db>web 80/TCP", "out web>world2 80/TCP"}},
		{name: "of a policy of the cluster", policies: ccnp(toServices(byLabels("tier: front") + ", " + ofGreen)), allow: []string{"out green>web 80/TCP", "out web>green 80/TCP"},
			deny: []string{"out web>db 80/TCP"}},
		{name: "a missing label", policies: cnp(toServices(expression("key: tier, operator: In, values: [front, mixed]"))), allow: []string{"out db>web 80/TCP", "out web>world 80/TCP"},
			deny: []string{"out web>db 80/TCP"}},
		{name: "a present label", policies: cnp(toServices(expression("key: role, operator: Exists"))), allow: []string{"out web>db 80/TCP"}, deny: []string{"out db>web 80/TCP"}},
		{name: "denied", policies: cnp(denyServices(byLabels("tier: back"))), deny: []string{"out web>db 80/TCP", "out web>world 80/TCP"},
			allow: []string{"out db>web 80/TCP", "out web>green 80/TCP", "out web>world2 80/TCP"}},
		{name: "beside a name", policies: cnp(toServices(byLabels("tier: front") + ", {k8sService: {serviceName: db}}")), allow: []string{"out web>db 80/TCP", "out db>web 80/TCP"}},
		{name: "beside toRequires", policies: cnp("endpointSelector: {}, egress: [{toServices: [" + byLabels("tier: back") + "], toRequires: [{matchLabels: {app: web}}]}]"),
			allow: []string{"out web>world 80/TCP"}, deny: []string{"out web>db 80/TCP"}},
	} {
		c.check(t, someRows())
		if p := read(t, someRows(), c.policies)[0]; len(p.Problems) > 0 || !slices.IsSorted(p.ServiceNamespaces) || len(p.ServiceNamespaces) == 0 {
			t.Errorf("%s: %v, %+v", c.name, p.ServiceNamespaces, p.Problems)
		}
	}
	p := read(t, someRows(), cnp(toServices(byLabels("tier: back")+", "+byLabels("role: store")+", {k8sService: {serviceName: db}}")))[0]
	if want := []policy.ServiceName{{Namespace: "red", Name: "db"}, {Namespace: "red", Name: "outside"}}; !reflect.DeepEqual(p.Services, want) {
		t.Errorf("the policy refers to %v", p.Services)
	}
	if n := p.ServiceBytes(someRows().Services, func(string) int { return 1000 }); n != 2*1000+3*len("app=db")+len("203.0.113.1,2001:db8::1") {
		t.Errorf("the Services count %d bytes", n)
	}
}

// TestFromCilium_ServicesByLabelsThatMatchNothing: the other Services that the selector chooses count.
func TestFromCilium_ServicesByLabelsThatMatchNothing(t *testing.T) {
	t.Parallel()
	for labels, want := range map[string]struct {
		reason, message string
		world           bool
	}{
		"tier: moon":     {policy.ReasonAbsent, `no Service of the namespace "red" has these labels: this peer of the rule DOES nothing until there is one`, false},
		"kind: external": {policy.ReasonUnsupported, `the Service "red/external" is an ExternalName: this Service DOES nothing; use toCIDR`, true},
	} {
		world, pods := []string{"out web>world 80/TCP"}, []string{"out web>db 80/TCP", "out web>world2 80/TCP"}
		allow := semantics{name: "allows " + labels, policies: cnp(toServices(byLabels(labels))), deny: append(slices.Clone(pods), world...)}
		deny := semantics{name: "denies " + labels, policies: ccnp(denyServices(byLabels(labels))), allow: append(slices.Clone(pods), world...)}
		if want.world {
			allow.allow, allow.deny, deny.allow, deny.deny = world, pods, pods, world
		}
		for does, c := range map[string]semantics{"allows": allow, "denies": deny} {
			c.check(t, someRows())
			p := read(t, someRows(), c.policies)[0]
			if len(p.Problems) != 1 || p.Problems[0].Reason != want.reason || !strings.Contains(p.Problems[0].Message, strings.Replace(want.message, "DOES", does, 1)) ||
				!strings.HasSuffix(p.Problems[0].Path, "[0].toServices[0].k8sServiceSelector") {
				t.Errorf("%s: %+v", c.name, p.Problems)
			}
		}
	}
	c := semantics{name: "a hidden label", policies: cnp(denyServices(byLabels("kind: hidden"))), deny: []string{"out db>web 80/TCP"}, allow: []string{"out web>db 80/TCP"}}
	c.check(t, someRows())
	if p := read(t, someRows(), c.policies)[0]; len(p.Problems) != 1 || p.Problems[0].Reason != policy.ReasonLabel {
		t.Errorf("%+v", p.Problems)
	}
}

// TestFromCilium_FaultsOfServiceSelectors_FailClosed: with a fault of the policy's text, or while rows cannot be read, a rule allows nothing or denies every peer.
func TestFromCilium_FaultsOfServiceSelectors_FailClosed(t *testing.T) {
	t.Parallel()
	unread, unreadSlices := someRows(), someRows()
	unread.ServicesUnread, unreadSlices.SlicesUnread = true, true
	for name, c := range map[string]struct {
		env                    policy.Environment
		items, reason, message string
	}{
		"no selector":        {someRows(), "{k8sServiceSelector: {namespace: red}}", policy.ReasonInvalid, "write {} to choose all Services"},
		"another source":     {someRows(), byLabels("\"cidrgroup:tier\": back"), policy.ReasonInvalid, "labels of Services have none"},
		"an unknown field":   {someRows(), "{k8sServiceSelector: {selector: {}, namespace: red, name: x}}", policy.ReasonInvalid, "unknown field"},
		"a wrong operator":   {someRows(), "{k8sServiceSelector: {selector: {matchExpressions: [{key: a, operator: Like}]}, namespace: red}}", policy.ReasonInvalid, "does not exist"},
		"Services unread":    {unread, byLabels("tier: back"), policy.ReasonAbsent, "Services cannot be read"},
		"slices unread":      {unreadSlices, byLabels("tier: back"), policy.ReasonAbsent, "EndpointSlices cannot be read"},
		"too many selectors": {someRows(), strings.Repeat(byLabels("tier: back")+", ", 21), policy.ReasonInvalid, "more than 20 items k8sServiceSelector"},
	} {
		for kind, policies := range map[string]string{"allows": cnp(toServices(c.items)), "denies": cnp(denyServices(c.items))} {
			p := read(t, c.env, policies)[0]
			if len(p.Problems) == 0 || p.Problems[0].Reason != c.reason || !strings.Contains(p.Problems[0].Message, c.message) {
				t.Errorf("%s %s: %+v", name, kind, p.Problems)
			}
			rules := p.Parts[0].Rules
			if kind == "allows" && len(rules) != 0 || kind == "denies" && (len(rules) != 2 || !rules[1].Deny || !rules[1].Peers.Any) || !p.Parts[0].IsolatesEgress {
				t.Errorf("%s %s %+v", name, kind, p.Parts)
			}
		}
	}
	const nameless = "{k8sServiceSelector: {selector: {}}}"
	for _, policies := range []string{ccnp(denyServices(nameless)), cnp(denyServices(nameless)), ccnp(toServices(nameless))} {
		p := read(t, someRows(), policies)[0]
		if len(p.Problems) != 1 || !p.Problems[0].Invalid || !strings.HasPrefix(p.Problems[0].Message, "the namespace of the Service is missing: the rule ") || len(p.ServiceNamespaces) != 0 {
			t.Errorf("without a namespace: %+v, %v", p.Problems, p.ServiceNamespaces)
		}
		for _, r := range p.Parts[0].Rules {
			if !r.Peers.Any {
				t.Errorf("without a namespace: %+v", r)
			}
		}
	}
	if p := read(t, unread, cnp(toServices(byLabels("tier: back"))))[0]; len(p.ServiceNamespaces) != 1 || len(p.Services) != 0 {
		t.Errorf("while Services cannot be read, the policy refers to %v and %v", p.ServiceNamespaces, p.Services)
	}
	escaped := policy.FromCilium(&cilium.Policy{Namespace: "red", Name: "p", Spec: json.RawMessage(
		`{"endpointSelector": {}, "egress": [{"toServices": [{"k8sServiceSelect\u006fr": {"selector": {}}}]}]}`)}, someRows())
	if len(escaped.Problems) != 1 || !strings.Contains(escaped.Problems[0].Message, "escapes in this name") || len(escaped.Parts[0].Rules) != 0 {
		t.Errorf("an escaped field: %+v", escaped)
	}
}

// manyServices returns Services of the namespace red with a label and a selector, and as many peers as rules may need to be counted.
func manyServices(n int, selects string) (rows []*k8s.Service) {
	for i := range n {
		rows = append(rows, &k8s.Service{Namespace: "red", Name: fmt.Sprintf("s%05d", i), Type: "ClusterIP", Labelled: "kind=many", Selects: selects})
	}
	return rows
}

// TestFromCilium_SelectorsShareTheBounds: the Services that one selector chooses leave other selectors and names their share.
func TestFromCilium_SelectorsShareTheBounds(t *testing.T) {
	t.Parallel()
	many, one := byLabels("kind: many"), "{k8sServiceSelector: {selector: {}, namespace: green}}"
	named := "{k8sService: {serviceName: api, namespace: green}}"
	api := &k8s.Service{Namespace: "green", Name: "api", Type: "ClusterIP", Selects: someLabels(20)}
	for _, c := range []struct {
		name, items string
		rows        []*k8s.Service
		peers       int
		message     string
	}{
		{"all", many, manyServices(1000, "app=web"), 1000, ""},
		{"too many Services", many, manyServices(1001, "app=web"), 1000, "the selector chooses more than 1000 Services: Services after \"s00999\""},
		{"a half each", many + ", " + one, manyServices(501, "app=web"), 501, "the selector chooses more than 500 Services: Services after \"s00499\""},
		{"too many requirements", many + ", " + one, manyServices(300, someLabels(20)), 238 + 1, "the selectors of the Services that the selector chooses have more than 5000 requirements: this Service "},
		{"beside a name", many + ", " + named, manyServices(500, someLabels(20)), 476 + 1, "more than 10000 requirements: this Service "},
		{"a large namespace", many, append([]*k8s.Service{{Namespace: "red", Name: "a"}}, manyServices(10_000, "app=web")...), 1000, "the namespace \"red\" has more than 10000 Services"},
		{"too many labels", many, []*k8s.Service{{Namespace: "red", Name: "a", Labelled: k8s.TooManyLabels, Selects: "app=web"}, manyServices(1, "app=web")[0]}, 1,
			"1 Services of the namespace \"red\" have too many labels"},
	} {
		env := withRows(append([]*k8s.Service{api}, c.rows...))
		for kind, policies := range map[string]string{"denies": ccnp(denyServices(c.items)), "allows": ccnp(toServices(c.items))} {
			p := read(t, env, policies)[0]
			rule := p.Parts[0].Rules[len(p.Parts[0].Rules)-1]
			if rule.Peers.Any || len(rule.Peers.List) != c.peers {
				t.Errorf("%s: the policy %s %d peers, want %d", c.name, kind, len(rule.Peers.List), c.peers)
			}
			if c.message == "" && len(p.Problems) > 0 || c.message != "" && (len(p.Problems) == 0 || !strings.Contains(p.Problems[0].Message, c.message)) {
				t.Errorf("%s: the policy %s: %+v", c.name, kind, p.Problems[:min(2, len(p.Problems))])
			}
		}
	}
}

// TestFromCilium_ManyAddressesOfServices: addresses beyond a bound are not allowed, and a deny that cannot name them denies everything outside the cluster.
func TestFromCilium_ManyAddressesOfServices(t *testing.T) {
	t.Parallel()
	var rows []*k8s.Service
	var all []*k8s.EndpointSlice
	add := func(name string, from, n int) {
		rows = append(rows, &k8s.Service{Namespace: "red", Name: name, Type: "ClusterIP", Labelled: "name=" + name})
		s := slice("red", name)
		for i := range n {
			s.Endpoints = append(s.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{203, byte(from), byte(i >> 8), byte(i)})}})
		}
		all = append(all, s)
	}
	add("full", 1, 1000)
	add("over", 1, 1001)
	for i := range 5 {
		add(fmt.Sprint("part-", i), 10+i, 1000)
	}
	env := withRows(rows, all...)
	name := func(names ...string) string {
		var items []string
		for _, n := range names {
			items = append(items, "{k8sService: {serviceName: "+n+", namespace: red}}")
		}
		return strings.Join(items, ", ")
	}
	parts := []string{"part-0", "part-1", "part-2", "part-3", "part-4"}
	for _, c := range []struct {
		name, items string
		peers       int
		message     string
	}{
		{"as many as may be", name("full"), 1000, ""},
		{"one too many", name("over"), 0, "the Service \"red/over\" has more than 1000 addresses: "},
		{"together", name(parts[:4]...), 4000, ""},
		{"too many together", name(parts...), 4000, "the Services in rules of this kind have more than 4000 addresses: "},
		{"by labels", byLabels("name: full"), 1000, ""},
		{"too many by labels", "{k8sServiceSelector: {selector: {matchExpressions: [{key: name, operator: NotIn, values: [full]}]}, namespace: red}}", 4000,
			"the Service \"red/over\" has more than 1000 addresses: "},
		{"a share of them", byLabels("name: full") + strings.Repeat(", "+byLabels("name: moon"), 4), 0, "the Services that the selector chooses have more than 800 addresses: "},
	} {
		allowed := read(t, env, cnp(toServices(c.items)))[0]
		denied := read(t, env, cnp(denyServices(c.items)))[0]
		allows, denies := allowed.Parts[0].Rules[0].Peers.List, denied.Parts[0].Rules[1].Peers.List
		beyond := 0
		if c.message != "" {
			beyond = 2
		}
		if len(allows) != c.peers || len(denies) != c.peers+beyond {
			t.Errorf("%s: %d peers are allowed and %d denied", c.name, len(allows), len(denies))
		}
		if c.message == "" {
			continue
		}
		for effect, p := range map[string]*policy.Policy{"this peer of the rule allows nothing": allowed, "this peer of the rule denies all addresses outside the cluster": denied} {
			if len(p.Problems) == 0 || p.Problems[0].Message != c.message+effect+"; use toCIDR with wider ranges" {
				t.Errorf("%s: %+v", c.name, p.Problems)
			}
		}
		outside := semantics{name: c.name, policies: cnp(denyServices(c.items)), deny: []string{"out web>world 80/TCP", "out web>world2 80/TCP"}, allow: []string{"out web>db 80/TCP", "out web>node 80/TCP"}}
		outside.check(t, env)
	}
}

// TestWithAddresses: only Services without a selector have addresses. The order and the repetition of addresses do not change the meaning.
func TestWithAddresses(t *testing.T) {
	t.Parallel()
	of := func(s *k8s.Service, all ...*k8s.EndpointSlice) policy.Service {
		return policy.ServiceOf(s).WithAddresses(slices.Values(all))
	}
	bare := &k8s.Service{Type: "ClusterIP"}
	first := of(bare, slice("red", "s", "2001:db8::1", "10.0.0.2"), slice("red", "s", "10.0.0.1"))
	if first.Addresses != "10.0.0.1,10.0.0.2,2001:db8::1" || first != of(bare, slice("red", "s", "::ffff:10.0.0.1", "10.0.0.2", "2001:db8::1", "10.0.0.1")) {
		t.Errorf("%+v", first)
	}
	if got := of(bare); got != (policy.Service{Found: true}) {
		t.Errorf("without slices: %+v", got)
	}
	for _, s := range []*k8s.Service{nil, {Type: "ClusterIP", Selects: "app=db"}, {Type: "ExternalName"}} {
		if got := of(s, slice("red", "s", "10.0.0.1")); got.Addresses != "" {
			t.Errorf("%+v has addresses: %+v", s, got)
		}
	}
	repeated := slice("red", "s", slices.Repeat([]string{"10.0.0.1"}, 2001)...)
	if got, fits := of(bare, repeated), of(bare, slice("red", "s", slices.Repeat([]string{"10.0.0.1"}, 2000)...)); fits.Addresses != "10.0.0.1" || got.Addresses == fits.Addresses {
		t.Errorf("%q, %q", got.Addresses, fits.Addresses)
	}
}

// TestFromCilium_WithoutSlices: a reader that has no slices reports no problem with the addresses of a Service.
func TestFromCilium_WithoutSlices(t *testing.T) {
	t.Parallel()
	env := someRows()
	env.WithoutSlices, env.SlicesUnread = true, true
	for _, items := range []string{"{k8sService: {serviceName: outside, namespace: red}}", byLabels("tier: back")} {
		if p := read(t, env, cnp(denyServices(items)))[0]; len(p.Problems) != 0 || len(p.Services) == 0 {
			t.Errorf("%s: %+v", items, p)
		}
	}
}
