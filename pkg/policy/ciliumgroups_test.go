package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// TestFromCilium_CIDRGroups uses one group of each family, and one without CIDRs and labels.
func TestFromCilium_CIDRGroups(t *testing.T) {
	t.Parallel()
	group := func(name, role string, blocks ...string) *cilium.CIDRGroup {
		g := &cilium.CIDRGroup{Name: name, Labels: map[string]string{"role": role}}
		for _, block := range blocks {
			g.CIDRs = append(g.CIDRs, netip.MustParsePrefix(block))
		}
		return g
	}
	env := policy.Environment{CIDRGroups: policy.CIDRGroups{}}
	for _, g := range []*cilium.CIDRGroup{group("outside", "partner", "203.0.113.0/24", "2001:db8::/32"), group("one", "office", "203.0.113.1/32", "2001:db8::1/128"),
		group("pods", "pods", "10.0.0.0/8", "fd00::/16"), {Name: "empty"}} {
		env.CIDRGroups[g.Name] = g
	}
	const all = "ingress: [{fromEntities: [all]}]"
	in := func(set string) string { return cnp("endpointSelector: {}, ingress: [{fromCIDRSet: [{" + set + "}]}]") }
	out := func(set string) string { return ccnp("endpointSelector: {}, egress: [{toCIDRSet: [{" + set + "}]}]") }
	for _, c := range []semantics{
		{name: "by name", policies: in("cidrGroupRef: outside") + out("cidrGroupRef: one"), allow: []string{"in world>db 80/TCP", "in world2>db 80/TCP", "out db>world 80/TCP"},
			deny: []string{"in web>db 80/TCP", "in node>db 80/TCP", "out db>world2 80/TCP"}},
		{name: "by label", policies: in("cidrGroupSelector: {matchLabels: {role: office}}"), allow: []string{"in world>db 80/TCP"}, deny: []string{"in world2>db 80/TCP"}},
		{name: "by several groups", policies: in("cidrGroupSelector: {matchExpressions: [{key: role, operator: In, values: [office, partner]}]}"),
			allow: []string{"in world>db 80/TCP", "in world2>db 80/TCP"}, deny: []string{"in host>db 80/TCP"}},
		{name: "by a label that groups lack", policies: in("cidrGroupSelector: {matchExpressions: [{key: role, operator: NotIn, values: [partner]}]}"),
			allow: []string{"in world>db 80/TCP"}, deny: []string{"in world2>db 80/TCP", "in web>db 80/TCP"}},
		{name: "groups match outside addresses", policies: in("cidrGroupRef: pods"), deny: []string{"in web>db 80/TCP", "in health>db 80/TCP", "in world>db 80/TCP"}},
		{name: "beside other CIDRs", policies: cnp("endpointSelector: {}, ingress: [{fromCIDR: [203.0.113.129/32], fromCIDRSet: [{cidrGroupRef: one}, {cidrGroupRef: pods}]}]"),
			allow: []string{"in world>db 80/TCP", "in world2>db 80/TCP"}, only: 4},
		{name: "an exception inside", policies: in("cidrGroupRef: outside, except: [203.0.113.128/25, \"2001:db8:0:1::/64\"]"), allow: []string{"in world>db 80/TCP"}, deny: []string{"in world2>db 80/TCP"}},
		{name: "an exception around", policies: in("cidrGroupRef: one, except: [203.0.0.0/8, \"2001::/16\", 192.0.2.0/24]"), deny: []string{"in world>db 80/TCP", "in world2>db 80/TCP"}},
		{name: "denied", policies: cnp("endpointSelector: {}, ingressDeny: [{fromCIDRSet: [{cidrGroupRef: one}]}], " + all),
			deny: []string{"in world>db 80/TCP"}, allow: []string{"in world2>db 80/TCP", "in web>db 80/TCP"}},
		{name: "an empty group", policies: in("cidrGroupRef: empty") + cnp("endpointSelector: {}, egressDeny: [{toCIDRSet: [{cidrGroupRef: empty}]}], egress: [{toEntities: [all]}]"),
			deny: []string{"in world>db 80/TCP", "in web>db 80/TCP"}, allow: []string{"out db>world 80/TCP"}},
		{name: "a missing group allows nothing", policies: in("cidrGroupRef: moon") + in("cidrGroupSelector: {matchLabels: {role: moon}}"),
			deny: []string{"in world>db 80/TCP", "in web>db 80/TCP"}},
		{name: "it denies nothing", policies: cnp("endpointSelector: {}, ingressDeny: [{fromCIDRSet: [{cidrGroupRef: moon}, {cidrGroupRef: one}]}], " + all),
			allow: []string{"in world2>db 80/TCP", "in web>db 80/TCP"}, deny: []string{"in world>db 80/TCP"}},
	} {
		c.check(t, env)
	}

	broken := group("broken", "")
	broken.Problems = []string{"spec.externalCIDRs[0]: must be a CIDR"}
	env.CIDRGroups["broken"] = broken
	for set, want := range map[string]struct{ path, reason, message string }{
		"cidrGroupRef: moon":                                                                      {".cidrGroupRef", policy.ReasonAbsent, `there is no CiliumCIDRGroup "moon": this peer of the rule allows nothing`},
		"cidrGroupSelector: {matchLabels: {role: moon}}":                                          {".cidrGroupSelector", policy.ReasonAbsent, "no CiliumCIDRGroup has these labels"},
		"cidrGroupRef: broken":                                                                    {".cidrGroupRef", policy.ReasonInvalid, "cannot be read and match nothing"},
		"cidrGroupSelector: {}":                                                                   {"", policy.ReasonInvalid, "the selector is empty"},
		"cidrGroupSelector: {matchLabels: {\"k8s:role\": office}}":                                {"", policy.ReasonInvalid, "labels of groups have none"},
		"cidrGroupSelector: {matchExpressions: [{key: role, operator: Like}]}":                    {"", policy.ReasonInvalid, "does not exist"},
		"cidrGroupRef: one, cidr: 10.0.0.0/8":                                                     {"", policy.ReasonInvalid, "one of cidr, cidrGroupRef and cidrGroupSelector"},
		"cidrGroupRef: one, cidrGroupSelector: {matchLabels: {role: office}}, except: [10.0.0.1]": {"", policy.ReasonInvalid, "one of cidr, cidrGroupRef and cidrGroupSelector"},
		"except: [10.0.0.1]":                                                                      {"", policy.ReasonInvalid, "one of cidr, cidrGroupRef and cidrGroupSelector"},
		"cidrGroupRef: \"\"":                                                                      {"", policy.ReasonInvalid, "cidrGroupRef is empty"},
		"cidrGroupRef: one, except: [moon]":                                                       {".except[0]", policy.ReasonInvalid, "is neither a CIDR nor an address"},
		"cidrGroupRef: one, cidrGroupRefs: [one, four]":                                           {".cidrGroupRefs", policy.ReasonUnsupported, "cidrGroupRefs is not supported"},
	} {
		p := read(t, env, in(set))[0]
		if len(p.Problems) != 1 || p.Problems[0].Path != "spec.ingress[0].fromCIDRSet[0]"+want.path || p.Problems[0].Reason != want.reason ||
			!strings.Contains(p.Problems[0].Message, want.message) {
			t.Errorf("%s: %+v", set, p.Problems)
		}
		denied := []string{"in web>db 80/TCP", "in world>db 80/TCP"}
		(&semantics{name: set, policies: in(set), deny: denied}).check(t, env)
		deny := cnp("endpointSelector: {}, ingressDeny: [{fromCIDRSet: [{" + set + "}]}], " + all)
		if want.path == ".cidrGroupRef" || want.path == ".cidrGroupSelector" {
			(&semantics{name: "deny of " + set, policies: deny, allow: denied}).check(t, env)
		} else if want.path != ".except[0]" {
			(&semantics{name: "deny of " + set, policies: deny, deny: denied}).check(t, env)
		} else { // the invalid exception does not narrow the deny
			(&semantics{name: "deny of " + set, policies: deny, allow: denied[:1], deny: denied[1:]}).check(t, env)
		}
	}
}

// TestPolicy_RefersTo checks that a policy refers to the groups that it selects, and to no other.
func TestPolicy_RefersTo(t *testing.T) {
	t.Parallel()
	p := read(t, policy.Environment{}, ccnp("endpointSelector: {}, ingressDeny: [{fromCIDRSet: [{cidrGroupRef: a}, {cidrGroupSelector: {matchLabels: {role: vpn}}}]}]"))[0]
	for _, c := range []struct {
		group cilium.CIDRGroup
		want  bool
	}{{cilium.CIDRGroup{Name: "a"}, true}, {cilium.CIDRGroup{Name: "b"}, false}, {cilium.CIDRGroup{Name: "b", Labels: map[string]string{"role": "vpn"}}, true},
		{cilium.CIDRGroup{Name: "b", Labels: map[string]string{"role": "office"}}, false}} {
		if got := p.RefersTo(&c.group); got != c.want {
			t.Errorf("%+v: %t", c.group, got)
		}
	}
	if p = read(t, policy.Environment{}, cnp("endpointSelector: {}"))[0]; p.RefersTo(&cilium.CIDRGroup{Name: "a"}) {
		t.Error("a policy without groups refers to one")
	}
}

// TestFromCilium_GroupNamedLikeASelector_IsAnotherChoice: a selector and a name are different choices, even if the name is the text of the selector.
func TestFromCilium_GroupNamedLikeASelector_IsAnotherChoice(t *testing.T) {
	t.Parallel()
	const name = `{"requirements":[{"source":"cidrgroup","key":"role","operator":"In","values":["office"]}]}`
	env := policy.Environment{CIDRGroups: policy.CIDRGroups{
		name:     {Name: name, CIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}},
		"office": {Name: "office", Labels: map[string]string{"role": "office"}, CIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.129/32")}}}}
	c := semantics{name: "both", policies: cnp("endpointSelector: {}, ingress: [{fromCIDRSet: [{cidrGroupSelector: {matchLabels: {role: office}}}, {cidrGroupRef: '" + name + "'}]}]"),
		allow: []string{"in world>db 80/TCP", "in world2>db 80/TCP"}, only: 4}
	c.check(t, env)
	if p := read(t, env, c.policies)[0]; len(p.Groups) != 2 {
		t.Errorf("the policy refers to %+v", p.Groups)
	}
}

// TestFromCilium_UnreadableCIDRGroups: rules that refer to the groups allow nothing and deny every peer; other rules are enforced.
func TestFromCilium_UnreadableCIDRGroups(t *testing.T) {
	t.Parallel()
	env := policy.Environment{GroupsUnread: true}
	for _, set := range []string{"cidrGroupRef: one", "cidrGroupSelector: {matchLabels: {role: office}}"} {
		refers := "[{fromCIDRSet: [{" + set + "}, {cidr: 203.0.113.1/32}]}"
		for _, c := range []semantics{
			{name: "allows", policies: cnp("endpointSelector: {}, ingress: " + refers + "]"), deny: []string{"in world>db 80/TCP", "in web>db 80/TCP"}},
			{name: "another rule allows", policies: cnp("endpointSelector: {}, ingress: " + refers + ", {fromCIDR: [203.0.113.1/32, \"2001:db8::1\"]}]"),
				allow: []string{"in world>db 80/TCP"}, deny: []string{"in web>db 80/TCP"}},
			{name: "denies", policies: cnp("endpointSelector: {}, ingressDeny: " + refers + "], ingress: [{fromEntities: [all]}]"),
				deny: []string{"in world>db 80/TCP", "in web>db 80/TCP"}},
		} {
			c.name += " " + set
			c.check(t, env)
			p := read(t, env, c.policies)[0]
			if len(p.Problems) != 1 || p.Problems[0].Reason != policy.ReasonAbsent || !p.RefersTo(&cilium.CIDRGroup{Name: "one", Labels: map[string]string{"role": "office"}}) {
				t.Errorf("%s: %+v", c.name, p)
			}
		}
	}
}

// TestFromCilium_ManyCIDRsOfGroups: a policy of 1 MB must not use gigabytes. Rules beyond the limits fail closed, and other rules are enforced.
func TestFromCilium_ManyCIDRsOfGroups(t *testing.T) {
	t.Parallel()
	env := policy.Environment{CIDRGroups: policy.CIDRGroups{}}
	for i := range 100 {
		g := &cilium.CIDRGroup{Name: fmt.Sprint("g", i), Labels: map[string]string{"role": "all"}}
		for j := range 1000 {
			g.CIDRs = append(g.CIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i), byte(j / 256), byte(j)}), 32))
		}
		env.CIDRGroups[g.Name] = g
	}
	many := func(n int, item func(int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = "{" + item(i) + "}"
		}
		return strings.Join(items, ", ")
	}
	again := func(int) string { return "cidrGroupRef: g1" }
	labelled := func(i int) string {
		return fmt.Sprintf("cidrGroupSelector: {matchExpressions: [{key: role, operator: NotIn, values: [v%d]}]}", i)
	}
	excepts := "except: [" + strings.TrimSuffix(strings.Repeat("203.1.0.0/32, ", 2000), ", ") + "]"
	for _, c := range []struct {
		name, set string
		fits      bool
	}{
		{"as many as may be", many(32, again), true},
		{"one group again and again", many(10_000, again), false},
		{"selectors of all groups", many(3000, labelled), false},
		{"selectors of missing groups", many(1001, func(i int) string { return fmt.Sprint("cidrGroupRef: none", i) }), false},
		{"exceptions", "{cidrGroupRef: g1, " + excepts + "}", false},
		{"exceptions from few", "{cidrGroupRef: few, " + excepts + "}", true},
	} {
		env.CIDRGroups["few"] = &cilium.CIDRGroup{Name: "few", CIDRs: []netip.Prefix{netip.MustParsePrefix("203.1.0.0/24")}}
		p := read(t, env, cnp("endpointSelector: {}, ingress: [{fromCIDRSet: ["+c.set+"]}, {fromCIDR: [198.51.100.0/24]}], egressDeny: [{toCIDRSet: ["+c.set+"]}]"))[0]
		size := len(p.Groups)
		for _, part := range p.Parts {
			for _, rule := range part.Rules {
				for _, peer := range rule.Peers.List {
					size += 1 + len(peer.Except)
				}
			}
		}
		if size > 140_000 {
			t.Errorf("%s: %d peers, exceptions and choices", c.name, size)
		}
		rules := p.Parts[0].Rules
		deny := rules[len(rules)-1]
		if c.fits == (len(p.Problems) > 0) || c.fits != (len(rules) == 3) || !deny.Deny || deny.Peers.Any == c.fits {
			t.Errorf("%s: %d rules, denies everybody: %v, problems %+v", c.name, len(rules), deny.Peers.Any, p.Problems[:min(2, len(p.Problems))])
		}
	}
}
