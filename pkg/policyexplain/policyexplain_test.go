package policyexplain

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// TestExplain checks a matrix of connections: the verdict, its reason, and that the maps agree.
func TestExplain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tc := range []struct {
		from, to, port string
		verdict        models.PolicyVerdict
		summary        string
	}{
		{"shop/cart", "shop/web", "80/TCP", "allowed", "ingress of the receiver: NetworkPolicy shop/web spec.ingress[0] allows it"},
		{"shop/cart", "shop/web", "9100/TCP", "allowed", "NetworkPolicy shop/web spec.ingress[0] allows it"},
		{"shop/cart", "shop/web", "8050/UDP", "allowed", "NetworkPolicy shop/web spec.ingress[0] allows it"},
		{"shop/cart", "shop/web", "81/TCP", "denied", "egress of the sender: CiliumNetworkPolicy shop/out spec.egressDeny[0] denies it"},
		{"shop/cart", "shop/web", "82/TCP", "denied", "ingress of the receiver: isolated by NetworkPolicy shop/web spec, and no rule allows it; " +
			"NetworkPolicy shop/web spec.ingress[0] nearly allows it: it is for 80/TCP, not 82"},
		{"shop/cart", "shop/free", "80/TCP", "denied", "egress of the sender: isolated by CiliumNetworkPolicy shop/out spec, and no rule allows it; " +
			"CiliumNetworkPolicy shop/out spec.egress[0] nearly allows it: the peer does not have"},
		{"shop/free", "shop/web", "80/TCP", "denied", "ingress of the receiver: isolated by NetworkPolicy shop/web spec"},
		{"shop/web", "shop/free", "80/TCP", "allowed", "no policy isolates it"},
		{"192.0.2.7", "shop/web", "22/TCP", "allowed", "NetworkPolicy shop/web spec.ingress[1] allows it"},
		{"192.0.2.200", "shop/web", "22/TCP", "denied", "192.0.2.200 is in 192.0.2.128/25, which is excepted"},
		{"10.0.0.100", "shop/web", "22/TCP", "allowed", "the local host reaches its endpoints"},
		{"shop/far", "shop/web", "80/TCP", "denied", "isolated by NetworkPolicy shop/web spec"},
		{"shop/cart", "shop/far", "80/TCP", "denied", "egress of the sender"},
		{"shop/web", "10.0.9.9", "80/TCP", "allowed", "the receiver is not an endpoint of this node"},
		{"10.0.9.9", "192.0.2.1", "80/TCP", "allowed", "no policy of it is asked"},
		{"shop/web", "198.51.100.7", "443/TCP", "denied", "CiliumNetworkPolicy shop/no-api spec.egressDeny[0] denies it"}, // outside the cluster
		{"shop/web", "192.168.9.2", "443/TCP", "denied", "CiliumNetworkPolicy shop/no-api spec.egressDeny[0] denies it"},  // on another node
		{"shop/web", "10.0.0.100", "443/TCP", "denied", "CiliumNetworkPolicy shop/no-api spec.egressDeny[0] denies it"},   // on this node
		{"shop/web", "198.51.100.8", "443/TCP", "allowed", "no policy isolates it"},
		{"10.0.7.7", "shop/web", "80/TCP", "denied", "ingress of the receiver"}, // the identity of the peer is unknown
		{"10.0.7.7", "shop/free", "80/TCP", "allowed", "no policy isolates it"}, // an unknown peer is denied only if the endpoint is isolated or a rule denies
		{"id:302", "shop/web", "80/TCP", "allowed", "NetworkPolicy shop/web spec.ingress[0] allows it"},
	} {
		e, err := f.tables.View().Explain(tc.from, tc.to, tc.port, f.kernel)
		if err != nil {
			t.Errorf("%s -> %s %s: %v", tc.from, tc.to, tc.port, err)
			continue
		}
		if e.Verdict != tc.verdict || !strings.Contains(e.Summary, tc.summary) {
			t.Errorf("%s -> %s %s: %s, %s\nwant %s, %s", tc.from, tc.to, tc.port, e.Verdict, e.Summary, tc.verdict, tc.summary)
		}
		for name, side := range map[string]*models.PolicySide{"egress": &e.Egress, "ingress": &e.Ingress} {
			if side.Here && !side.Kernel.Agrees {
				t.Errorf("%s -> %s %s, %s: the maps do not agree: %+v", tc.from, tc.to, tc.port, name, side.Kernel)
			}
		}
	}
}

// TestExplain_NamesUnenforcedRule: an explanation of a deny names the rule that allows nothing because it is not enforced.
func TestExplain_NamesUnenforcedRule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	parsed, _, err := manifests.Policies([]byte(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: names, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: free}}
  ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: "80"}], rules: {http: [{}]}}]}]
  egress: [{toFQDNs: [{matchName: example.org}]}]
`), f.tables.Environment.Read(f.tables.DB.ReadTxn(), statedb.NewWatchSet()))
	if err != nil || len(parsed) != 1 {
		t.Fatalf("%d policies: %v", len(parsed), err)
	}
	insert(t, f.tables.DB, f.policies, &policies.Policy{Policy: parsed[0]})
	for _, tc := range []struct{ from, to, want string }{
		{"shop/web", "shop/free", "denied in ingress of the receiver: isolated by CiliumNetworkPolicy shop/names spec, and no rule allows it; " +
			"not enforced: CiliumNetworkPolicy shop/names spec.ingress[0].toPorts[0].rules (waggle policy list)"},
		{"shop/free", "192.0.2.1", "denied in egress of the sender: isolated by CiliumNetworkPolicy shop/names spec, and no rule allows it; " +
			"not enforced: CiliumNetworkPolicy shop/names spec.egress[0].toFQDNs (waggle policy list)"},
	} {
		e, err := f.tables.View().Explain(tc.from, tc.to, "80/TCP", f.kernel)
		if err != nil || e.Summary != tc.want {
			t.Errorf("%s -> %s: %v\ngot  %s\nwant %s", tc.from, tc.to, err, e.Summary, tc.want)
		}
	}
}

func TestExplain_ReportsRulesEntryAndConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e, err := f.tables.View().Explain("shop/cart", "shop/web", "80/TCP", f.kernel)
	if err != nil {
		t.Fatal(err)
	}
	if e.From.Endpoint != cartID || e.From.Identity != 302 || e.From.Address != "10.0.0.2" || e.To.Pod != "shop/web" || len(e.To.Labels) != 3 {
		t.Errorf("parties: %+v, %+v", e.From, e.To)
	}
	if len(e.Egress.Considered) != 2 || !e.Egress.Considered[0].Matches || e.Egress.Considered[1].Matches || !e.Egress.Considered[1].Deny {
		t.Errorf("rules considered in egress: %+v", e.Egress.Considered)
	}
	if got := e.Ingress.Kernel.Entry; got != "identity 302, TCP 80 (NetworkPolicy shop/web spec.ingress[0]), allows" {
		t.Errorf("entry: %s", got)
	}
	if len(e.Conntrack) != 1 || e.Conntrack[0] != "10.0.0.2 -> 10.0.0.1 80/6" {
		t.Errorf("connections: %q", e.Conntrack)
	}
}

// TestExplain_Classes: the deciding entry names the class of the peer.
func TestExplain_Classes(t *testing.T) {
	t.Parallel()
	f := fixtureOf(t, spaces)
	for port, want := range map[string]string{"80": "all pods, TCP 80 (NetworkPolicy shop/spaces spec.ingress[0]), allows",
		"81": "pods of the namespace, TCP 81 (NetworkPolicy shop/spaces spec.ingress[1]), allows", "82": ""} {
		e, err := f.tables.View().Explain("shop/cart", "shop/web", port+"/TCP", f.kernel)
		if err != nil || e.Ingress.Kernel.Entry != want || !e.Ingress.Kernel.Agrees {
			t.Errorf("port %s: %v, %+v", port, err, e.Ingress.Kernel)
		}
	}
}

// A policy in audit mode denies nothing, and its verdict is reported.
func TestExplain_Audit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e, err := f.tables.View().Explain("shop/web", "shop/free", "80/TCP", f.kernel)
	if err != nil {
		t.Fatal(err)
	}
	if e.Verdict != models.PolicyVerdictAllowed || e.Ingress.Audit.Verdict != models.PolicyVerdictDenied {
		t.Errorf("got %s, with audit %s", e.Verdict, e.Ingress.Audit.Verdict)
	}
}

func TestExplain_ReportsMapDifferences(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(k *fakeKernel)
		want  string
	}{
		"an entry is missing": {func(k *fakeKernel) { clear(k.entries) }, "the maps say denied, the policies allowed"},
		"the slot names another policy": {func(k *fakeKernel) {
			facts := k.facts[webID]
			facts.PolicyIngress = 0
			k.facts[webID] = facts
		}, "the endpoint has policy 0"},
		"the peer is another endpoint": {func(k *fakeKernel) { k.identities[netip.MustParseAddr("10.0.0.2")] = 303 },
			"the kernel takes 10.0.0.2 for identity 303, the tables for 302"},
		"a CIDR without policy": {func(k *fakeKernel) {
			k.cidrs = maps.Clone(k.cidrs)
			k.cidrs[netip.MustParsePrefix("10.0.0.0/24")] = 99
		}, "the kernel takes 10.0.0.2 for CIDR 99, the tables for 0"},
	} {
		f := newFixture(t)
		tc.spoil(f.kernel)
		e, err := f.tables.View().Explain("shop/cart", "shop/web", "80/TCP", f.kernel)
		if err != nil {
			t.Fatal(err)
		}
		if k := e.Ingress.Kernel; k.Agrees || !strings.Contains(k.Message, tc.want) {
			t.Errorf("%s: %+v", name, k)
		}
		if e.Verdict != models.PolicyVerdictAllowed {
			t.Errorf("%s: the policies say %s", name, e.Verdict)
		}
	}
}

func TestExplain_BadInput(t *testing.T) {
	t.Parallel()
	v := newFixture(t).tables.View()
	for _, tc := range []struct {
		from, port string
		want       error
	}{
		{"shop/none", "80/TCP", ErrUnknown}, {"id:999", "80/TCP", ErrUnknown}, {"id:x", "80/TCP", ErrInvalid}, {"web", "80/TCP", ErrInvalid},
		{"a/b/c", "80/TCP", ErrInvalid}, {"/b", "80/TCP", ErrInvalid}, {"", "80/TCP", ErrInvalid}, {"fd00::1", "80/TCP", errFamilies},
		{"shop/cart", "8/ICMPv6", errFamilies},
	} {
		if _, err := v.Explain(tc.from, "shop/web", tc.port, &fakeKernel{}); !errors.Is(err, tc.want) {
			t.Errorf("%q %s: %v", tc.from, tc.port, err)
		}
	}
	for _, port := range []string{"", "80", "/TCP", "80/", "70000/TCP", "-1/TCP", "80/IPX"} {
		if _, _, err := ParsePort(port); err == nil {
			t.Errorf("port %q is taken", port)
		}
	}
}

func TestWhy(t *testing.T) {
	t.Parallel()
	v := newFixture(t).tables.View()
	addr := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	packet := Packet{Endpoint: webID, Direction: policy.Ingress, Protocol: policy.ProtocolTCP, Port: 82, Own: addr(1), Other: addr(2), Peer: 302}
	allowed, gone, unknown := packet, packet, packet
	allowed.Port, gone.Own, unknown.Peer, unknown.Other = 80, addr(9), 0, netip.MustParseAddr("fd00::1")
	for _, tc := range []struct {
		packet Packet
		want   string
	}{
		{packet, "isolated by NetworkPolicy shop/web spec, and no rule allows it; NetworkPolicy shop/web spec.ingress[0] nearly allows it: it is for 80/TCP, not 82;"},
		{allowed, "allowed by the policies of now: NetworkPolicy shop/web spec.ingress[0] allows it"},
		{unknown, "nothing is known of the address of its peer"},
	} {
		if got := v.Why(&tc.packet); !strings.HasPrefix(got, tc.want) || len(got) > maxSentence+3 {
			t.Errorf("%+v: %s", tc.packet, got)
		}
	}
	if got := v.Why(&gone); got != "" {
		t.Errorf("another endpoint has the number now: %s", got)
	}
}

func TestWhatIf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	flow := func(endpoint uint16, d policy.Direction, src, dst string, port uint16, peer uint32, count uint64) {
		insert(t, f.tables.DB, f.flows, &flows.Flow{Endpoint: endpoint, Direction: d, Protocol: policy.ProtocolTCP, Port: port,
			Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Peer: peer, Count: count, First: start, Last: start.Add(time.Minute)})
	}
	flow(webID, policy.Ingress, "10.0.0.2", "10.0.0.1", 80, 302, 5)  // allowed
	flow(webID, policy.Ingress, "10.0.0.2", "10.0.0.1", 82, 302, 1)  // denied
	flow(freeID, policy.Ingress, "10.0.0.1", "10.0.0.3", 80, 301, 2) // allowed
	flow(9, policy.Ingress, "10.0.0.1", "10.0.0.9", 80, 301, 2)      // the endpoint no longer exists
	const changed = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 82}]}]}}`
	d, err := f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: changed + "\n---\n# nothing\n---\nkind: Secret\nmetadata: {name: x}"}, f.flows)
	if err != nil {
		t.Fatal(err)
	}
	if d.Flows != 3 || d.Unknown != 1 || d.Since != "2026-01-02T03:04:05Z" || len(d.Replaced) != 1 || len(d.Problems) != 1 {
		t.Errorf("got %+v", d)
	}
	if len(d.Denied) != 1 || d.Denied[0].Port != "80/TCP" || d.Denied[0].Count != 5 || d.Denied[0].From.Pod != "shop/cart" ||
		!strings.Contains(d.Denied[0].Text, "it is for 82/TCP, not 80") {
		t.Errorf("denied: %+v", d.Denied)
	}
	if len(d.Allowed) != 1 || d.Allowed[0].Port != "82/TCP" || d.Allowed[0].Text != "NetworkPolicy shop/web spec.ingress[0] allows it" {
		t.Errorf("allowed: %+v", d.Allowed)
	}
	if d, err = f.tables.View().WhatIf(models.PolicyWhatIf{Delete: []string{"shop/web"}}, f.flows); err != nil || len(d.Allowed) != 1 || len(d.Denied) != 0 {
		t.Errorf("without the policy: %v, %+v", err, d)
	}
	if d, err = f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: strings.Replace(changed, "name: web,", "name: new,", 1)}, f.flows); err != nil ||
		len(d.Added) != 1 || len(d.Allowed) != 1 || len(d.Denied) != 0 {
		t.Errorf("with one more: %v, %+v", err, d)
	}
	for _, bad := range []string{"a: [", "kind: NetworkPolicy\nspec: 1", "kind: NetworkPolicy\nmetadata: {name: a}\nspec: {podselector: {}}", "- a"} {
		if _, err := f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: bad}, f.flows); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestEndpointPolicy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.tables.View()
	for id, want := range map[uint16]models.EndpointPolicyPolicyEnabled{webID: "ingress", cartID: "egress", freeID: "audit-ingress"} {
		for ep := range f.tables.Endpoints.All(v.txn) {
			if ep.ID == id {
				if got := v.EndpointPolicy(ep).PolicyEnabled; got != want {
					t.Errorf("endpoint %d: %s, want %s", id, got, want)
				}
			}
		}
	}
}

// TestEndpointPolicy_NamesIdentitiesOfClasses: for users of the API, an entry for all pods or for a namespace is an entry for each of the identities.
func TestEndpointPolicy_NamesIdentitiesOfClasses(t *testing.T) {
	t.Parallel()
	f := fixtureOf(t, spaces)
	v := f.tables.View()
	ep, _, _ := f.tables.Endpoints.Get(v.txn, endpoints.ByID(webID))
	m := v.EndpointPolicy(ep)
	if want := []int64{301, 302, 303, 304}; !slices.Equal(m.AllowedIngressIdentities, want) || len(m.DeniedIngressIdentities) > 0 {
		t.Errorf("%v are allowed and %v denied, want %v", m.AllowedIngressIdentities, m.DeniedIngressIdentities, want)
	}
}

// BenchmarkWhy explains a drop with 1,000 policies of three rules that select the endpoint and 10,000 pods on other nodes.
func BenchmarkWhy(b *testing.B) {
	f := newFixture(b)
	web := policy.Selector{Requirements: []policy.Requirement{{Source: "k8s", Key: "app", Operator: policy.In, Values: []string{"web"}}}}
	rule := policy.Rule{Path: "spec.ingress[0]", Direction: policy.Ingress, Peers: policy.Peers{List: []policy.Peer{{Labels: &web}}},
		Ports: policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 82, High: 82}}}}
	for i := range 1000 {
		insert(b, f.tables.DB, f.policies, &policies.Policy{Policy: &policy.Policy{Ref: policy.Ref{Kind: policy.Kubernetes, Name: fmt.Sprint(i)},
			Parts: []policy.Part{{Path: "spec", Subject: web, IsolatesIngress: true, Rules: []policy.Rule{rule, rule, rule}}}}})
	}
	for i := range 10000 {
		insert(b, f.tables.DB, f.remote, cilium.NewEndpoint(cilium.EndpointFields{Namespace: "far", Name: fmt.Sprint(i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}))
	}
	p := Packet{Endpoint: webID, Direction: policy.Ingress, Protocol: policy.ProtocolTCP, Port: 82, Peer: 304,
		Own: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Other: netip.AddrFrom4([4]byte{10, 0, 9, 9})}
	for b.Loop() {
		if f.tables.View().Why(&p) == "" {
			b.Fatal("no answer")
		}
	}
}
