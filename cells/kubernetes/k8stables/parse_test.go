package k8stables

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// one parses a file with one object.
func one(t *testing.T, text string) parsed {
	t.Helper()
	out := parse("x.yaml", "one", []byte(text))
	if len(out) != 1 {
		t.Fatalf("got %d documents of %q", len(out), text)
	}
	return out[0]
}

// named returns an object with a name and further fields.
func named(kind, fields string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: a}, %s}", kind, fields)
}

func TestParse_Rejects(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, reason string }{
		"no kind":          {"apiVersion: v1", "kind: Required value"},
		"a scalar":         {"hello", "cannot unmarshal"},
		"a doubled key":    {"apiVersion: v1\nkind: Pod\nkind: Pod", "line 3"},
		"an unknown field": {named("Pod", "spec: {nodename: x}"), `unknown field "spec.nodename"`},
		"wrong case": {
			"{apiVersion: v1, kind: Pod, metadata: {Name: a}}",
			`unknown field "metadata.Name"`,
		},
		"a wrong type": {"{apiVersion: v1, kind: Pod, metadata: {name: 5}}", "cannot unmarshal number"},
		"no name":      {"{apiVersion: v1, kind: Pod}", "metadata.name: Required value"},
		"a path as name": {
			"{apiVersion: v1, kind: Pod, metadata: {name: ../../etc}}",
			"metadata.name: Invalid value",
		},
		"a slash in a name": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a/b}}",
			"metadata.name: Invalid value",
		},
		"a separator": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: \"b:c\"}}",
			"metadata.namespace: Invalid value",
		},
		"a long name": {
			"{apiVersion: v1, kind: Pod, metadata: {name: " + strings.Repeat("a", 10_000) + "}}",
			"metadata.name: Invalid value",
		},
		"a bad label": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {x: \"y=z\"}}}",
			"metadata.labels: Invalid value",
		},
		"a bad label key": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {\"x;y\": z}}}",
			"metadata.labels: Invalid value",
		},
		"a bad annotation": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {\"x y\": z}}}",
			"metadata.annotations: Invalid value",
		},
		"a node in a space": {
			"{apiVersion: v1, kind: Node, metadata: {name: a, namespace: b}}",
			"metadata.namespace: Forbidden",
		},
		"another version": {
			"{apiVersion: v1beta1, kind: Pod, metadata: {name: a}}",
			"apiVersion: Unsupported value",
		},
		"a bad node name":   {named("Pod", "spec: {nodeName: \"a b\"}"), "spec.nodeName: Invalid value"},
		"a bad pod address": {named("Pod", "status: {podIP: x}"), "status.podIPs[0]"},
		"a bad service port": {
			named("Service", "spec: {ports: [{port: 70000}]}"),
			"spec.ports[0].port: Invalid value",
		},
		"a bad cluster IP": {named("Service", "spec: {clusterIP: none}"), "spec.clusterIPs[0]"},
		"a bad type":       {named("Service", "spec: {type: Odd}"), "spec.type: Unsupported value"},
		"a bad protocol": {
			named("Service", "spec: {ports: [{port: 1, protocol: ICMP}]}"),
			"spec.ports[0].protocol: Unsupported value",
		},
		"a bad affinity": {
			named("Service", "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}"),
			"must be between",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := one(t, test.text)
			if got.Status != rejected || !strings.Contains(got.Reason, test.reason) || got.object != nil {
				t.Errorf("got %s: %s, want a rejection with %q", got.Status, got.Reason, test.reason)
			}
			checkShown(t, got.manifest)
		})
	}
}

// A Node with an unreadable address is used without that address, and the document has the reason. Control characters of a name do not reach the
// terminal.
func TestParse_PartlyInvalidObject_IsUsed(t *testing.T) {
	t.Parallel()
	got := one(t, named("Node", `status: {addresses: [{type: InternalIP, address: 1.2.3}, {type: Hostname, address: "a\e[2J"}, {type: InternalIP, address: 192.0.2.1}]}`))
	if got.Status != used || !strings.Contains(got.Reason, "status.addresses[0].address") {
		t.Fatalf("got %s: %s", got.Status, got.Reason)
	}
	checkShown(t, got.manifest)
	row := got.object.(*k8s.Node)
	if want := []k8s.NodeAddress{{Type: "Hostname", Address: "a\x1b[2J"}, {Type: "InternalIP", Address: "192.0.2.1"}}; !slices.Equal(row.Addresses, want) {
		t.Errorf("the addresses are %q, want %q", row.Addresses, want)
	}
	if shown := strings.Join(row.TableRow(), " "); strings.Contains(shown, "\x1b") {
		t.Errorf("the row shows %q", shown)
	}
}

// TestParse_KeepsInvalidPolicies: an invalid policy still isolates its pods, and its invalid parts allow nothing.
func TestParse_KeepsInvalidPolicies(t *testing.T) {
	t.Parallel()
	rule := func(r k8s.PolicyRule) string {
		if len(r.Peers)+len(r.Ports) > 0 {
			t.Errorf("an invalid rule has peers or ports: %+v", r)
		}
		return r.Invalid
	}
	whole := func(p *k8s.NetworkPolicy) string { return p.Invalid }
	ingress := func(p *k8s.NetworkPolicy) string { return rule(p.Ingress[0]) }
	egress := func(p *k8s.NetworkPolicy) string { return rule(p.Egress[0]) }
	for name, test := range map[string]struct {
		fields, want string
		problem      func(*k8s.NetworkPolicy) string
	}{
		"a peer of two kinds": {"ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]", "may not specify both", ingress},
		"an empty peer":       {"egress: [{to: [{}]}]", "must specify a peer", egress},
		"a bad CIDR":          {"egress: [{to: [{ipBlock: {cidr: 10.0.0.0/33}}]}]", "must be a CIDR", egress},
		"except outside":      {"egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/9]}}]}]", "strict subset", egress},
		"a bad port":          {"egress: [{ports: [{port: 0}]}]", "ports[0].port: Invalid value", egress},
		"a bad port name":     {"egress: [{ports: [{port: a_b}]}]", "ports[0].port: Invalid value", egress},
		"a bad protocol":      {"egress: [{ports: [{protocol: ICMP}]}]", "protocol: Unsupported value", egress},
		"a bad end of ports":  {"egress: [{ports: [{port: 90, endPort: 80}]}]", "endPort: Invalid value", egress},
		"an end of a name":    {"egress: [{ports: [{port: web, endPort: 80}]}]", "endPort: Invalid value", egress},
		"a bad operator":      {"ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Like}]}}]}]", "operator", ingress},
		"a bad direction":     {"policyTypes: [Sideways]", "spec.policyTypes[0]: Unsupported value", whole},
		"a bad subject":       {"podSelector: {matchExpressions: [{key: a, operator: In}]}", "must be specified", whole},
		"an unknown peer":     {"ingress: [{from: [{serviceSelector: {}}]}]", "must specify a peer", ingress},
		"an unknown limit":    {"ingress: [{from: [{podSelector: {}, during: night}]}]", `unknown field "spec.ingress[0].from[0].during"`, whole},
	} {
		fields := "podSelector: {}, " + test.fields
		if strings.HasPrefix(test.fields, "podSelector") {
			fields = test.fields
		}
		got := one(t, "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a},\n spec: {"+fields+"}}")
		row, ok := got.object.(*k8s.NetworkPolicy)
		if !ok {
			t.Errorf("%s: %s: %s", name, got.Status, got.Reason)
			continue
		}
		if problem := test.problem(row); !strings.Contains(problem, test.want) || !row.IsIngress {
			t.Errorf("%s: it says %q, want %q; it isolates ingress: %t", name, problem, test.want, row.IsIngress)
		}
	}
}

// comparable makes cmp compare addresses and prefixes.
var comparable = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func TestParse_Rows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		want any
	}{
		{`{apiVersion: v1, kind: Node, metadata: {name: one, uid: u, labels: {a: b}, annotations: {c/d: e}},
  spec: {podCIDR: rubbish, podCIDRs: [10.0.0.0/24]}, status: {addresses: [{type: Hostname, address: one.example}]}}`,
			&k8s.Node{Name: "one", UID: "u", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c/d": "e"},
				PodCIDR: "rubbish", PodCIDRs: []string{"10.0.0.0/24"},
				Addresses: []k8s.NodeAddress{{Type: "Hostname", Address: "one.example"}}}},
		{`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: one, hostNetwork: true, serviceAccountName: sa,
  containers: [{name: x, ports: [{containerPort: 80}, {name: web, containerPort: 8080}, {name: web, containerPort: 8081, protocol: SCTP}]},
  {name: second, ports: [{name: web, containerPort: 9}]}], initContainers: [{name: i, ports: [{name: gone, containerPort: 1}]},
  {name: s, restartPolicy: Always, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]},
  status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}`,
			&k8s.Pod{Namespace: "default", Name: "a", NodeName: "one", ServiceAccount: "sa", HostNetwork: true,
				PodIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
				Ports: []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 8080}, {Name: "web", Protocol: "SCTP", Number: 8081},
					{Name: "dns", Protocol: "UDP", Number: 53}}}},
		{`{apiVersion: v1, kind: Pod, metadata: {name: a, uid: u, annotations: {kubernetes.io/config.mirror: s}}}`,
			&k8s.Pod{Namespace: "default", Name: "a", UID: "u", StaticUID: "s",
				Annotations: map[string]string{"kubernetes.io/config.mirror": "s"}}},
		{`{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: {type: NodePort, clusterIP: 10.96.0.1,
  selector: {x: z},  externalTrafficPolicy: Local, internalTrafficPolicy: Local, sessionAffinity: ClientIP,
  loadBalancerSourceRanges: [192.0.2.1/24],
  ports: [{name: web, port: 80, targetPort: http, nodePort: 30080}, {port: 53, protocol: UDP}]}}`,
			&k8s.Service{Namespace: "b", Name: "a", Type: "NodePort", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				Selects: "x=z", ExternalLocal: true, InternalLocal: true, Affinity: 3 * time.Hour,
				SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Ports: []k8s.ServicePort{{Name: "web", Protocol: "TCP", Port: 80, NodePort: 30080, TargetPort: "http"},
					{Protocol: "UDP", Port: 53, TargetPort: "53"}}}},
		{`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{ports: [{containerPort: 80, hostPort: 8080},
  {containerPort: 81, hostPort: 8080}, {containerPort: 53, hostPort: 53, protocol: UDP, hostIP: 127.0.0.1}, {containerPort: 82, hostPort: 82, hostIP: "::"},
  {containerPort: 83, hostPort: 83, hostIP: x}, {containerPort: 84}]}]}}`,
			&k8s.Pod{Namespace: "default", Name: "a", HostPorts: []k8s.HostPort{{Protocol: "TCP", Port: 8080, Container: 80},
				{Addr: netip.MustParseAddr("127.0.0.1"), Protocol: "UDP", Port: 53, Container: 53}, {Protocol: "TCP", Port: 82, Container: 82}}}},
		{`{apiVersion: v1, kind: Service, metadata: {name: a, creationTimestamp: "1970-01-01T00:01:00Z"}, spec: {type: LoadBalancer},
  status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 192.0.2.2, ipMode: Proxy}, {ip: 192.0.2.3, ipMode: VIP}, {hostname: x}]}}}`,
			&k8s.Service{Namespace: "default", Name: "a", Type: "LoadBalancer", Created: 60,
				IngressIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.3")}}},
		{`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4,
  endpoints: [{addresses: [10.0.0.1], hints: {forZones: [{name: z}], forNodes: [{name: two}]}}]}`,
			&k8s.EndpointSlice{Namespace: "default", Name: "a", AddressType: "IPv4", Endpoints: []k8s.SliceEndpoint{{
				Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ready: true, Serving: true, ForZones: []string{"z"}, ForNodes: []string{"two"}}}}},
		{`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None}}`,
			&k8s.Service{Namespace: "default", Name: "a", Type: "ClusterIP", Headless: true}},
		{`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a},
  spec: {podSelector: {matchLabels: {x: z}},
  ingress: [{from: [{namespaceSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}],
  ports: [{port: 80, endPort: 90}]}]}}`,
			&k8s.NetworkPolicy{Namespace: "default", Name: "a", PodSelector: k8s.Selector{MatchLabels: map[string]string{"x": "z"}},
				IsIngress: true, Ingress: []k8s.PolicyRule{{
					Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}, {IPBlock: netip.MustParsePrefix("10.0.0.0/8"),
						Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
					Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "80", EndPort: 90}}}}}},
		{`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}, egress: [{}]}}`,
			&k8s.NetworkPolicy{Namespace: "default", Name: "a", IsIngress: true, IsEgress: true, Egress: []k8s.PolicyRule{{}}}},
	} {
		got := one(t, test.text)
		if got.Status != used {
			t.Errorf("%.60s: %s: %s", test.text, got.Status, got.Reason)
			continue
		}
		if diff := cmp.Diff(test.want, got.object, comparable); diff != "" {
			t.Errorf("%.60s: %s", test.text, diff)
		}
	}
}

func TestParse_BoundsAFile(t *testing.T) {
	t.Parallel()
	text := "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- {kind: X}\n", manifests.MaxDocuments+5)
	out := parse("x.yaml", "one", []byte(text))
	if last := out[len(out)-1]; len(out) != manifests.MaxDocuments+1 || !strings.Contains(last.Reason, "more than 10000 objects") {
		t.Errorf("%d documents, the last says %q", len(out), last.Reason)
	}
}

func TestParse_RejectsAliasExpansion(t *testing.T) {
	t.Parallel()
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	if got := one(t, text); got.Status != rejected || !strings.Contains(got.Reason, "alias") {
		t.Errorf("got %s: %s", got.Status, got.Reason)
	}
}

func TestDirectory_OddEntries(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, dir := range []string{"folder.yaml", ".hidden.yaml"} {
		if err := os.Mkdir(filepath.Join(path, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(path, "dangling.yml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(touch(t, path, "huge.json"), maxFileSize+1); err != nil {
		t.Fatal(err)
	}
	touch(t, path, "esc\x1b[2J.yaml")
	d := &directory{path: path, nodeName: "one"}
	out, err := d.read()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"folder.yaml": "not a regular file", "dangling.yml": "no such file", "huge.json": "larger than"}
	for _, p := range out {
		if p.Status != rejected || !strings.Contains(p.Reason, want[p.File]) || want[p.File] == "" {
			t.Errorf("%s: %s: %s", p.File, p.Status, p.Reason)
		}
		delete(want, p.File)
		checkShown(t, p.manifest)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said about %v", want)
	}
}

func touch(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkShown checks that a row is printable and short, and that a document that is not used has a reason.
func checkShown(t *testing.T, m manifest) {
	t.Helper()
	for _, column := range m.TableRow() {
		if strings.ContainsFunc(column, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			t.Errorf("%q is not fit to be shown", column)
		}
		if len(column) > 4*maxReason+10 {
			t.Errorf("a column has %d bytes", len(column))
		}
	}
	if m.Status != used && m.Reason == "" {
		t.Errorf("%s for the reason %q", m.Status, m.Reason)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: [\n"))
	f.Add("a.json", []byte(`{"apiVersion":"v1","kind":"List",
"items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}},null,5]}`))
	f.Add("a.yaml", []byte("--- &a [*a]\n...\n--- !!binary x\n\x00"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		out := parse(printable.Short(name, maxReason), "one", data)
		for _, p := range out {
			checkShown(t, p.manifest)
			if (p.Status == used) != (p.object != nil) {
				t.Errorf("%s with the object %v", p.Status, p.object)
			}
		}
		s := merge(out)
		if len(s.manifests) > len(out) {
			t.Errorf("%d rows of %d documents", len(s.manifests), len(out))
		}
	})
}
