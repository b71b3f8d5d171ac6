package node_test

import (
	"testing"
)

// ciliumPolicy and clusterwidePolicy return manifests of Cilium's policies.
func ciliumPolicy(namespace, spec string) string {
	return object("CiliumNetworkPolicy", "cilium.io/v2", namespace, spec)
}

func clusterwidePolicy(spec string) string {
	return object("CiliumClusterwideNetworkPolicy", "cilium.io/v2", "", spec)
}

// subjectA selects the subject of most cases: app a, in a namespace or everywhere.
const subjectA = "endpointSelector: {matchLabels: {app: a}}, "

func (w *world) ciliumPeers(t *testing.T) {
	ingress := func(rules string) []string { return []string{ciliumPolicy("x", subjectA+"ingress: ["+rules+"]")} }
	egress := func(rules string) []string { return []string{ciliumPolicy("x", subjectA+"egress: ["+rules+"]")} }
	w.run(t, []policyCase{
		{"endpoints are of the own namespace", ingress("{fromEndpoints: [{matchLabels: {app: b}}]}"), nil, inbound("x/a", from("x/b"))},
		{"endpoints of a named namespace", ingress("{fromEndpoints: [{matchLabels: {app: b, 'k8s:io.kubernetes.pod.namespace': w}}]}"), nil,
			inbound("x/a", from("w/b"))},
		{"endpoints by labels of their namespace", ingress("{fromEndpoints: [{matchLabels: {'k8s:io.cilium.k8s.namespace.labels.team': w}}]}"), nil,
			inbound("x/a", from("w/*"))},
		{"all endpoints of the own namespace", ingress("{fromEndpoints: [{}]}"), nil, inbound("x/a", from("x/*"))},
		{"all namespaces but one are pods, not the world", ingress("{fromEndpoints: [{matchExpressions: [{key: 'k8s:io.kubernetes.pod.namespace', operator: NotIn, values: [w]}]}]}"), nil,
			inbound("x/a", from("x/* z/*"))},
		{"and not the node", egress("{toEndpoints: [{matchExpressions: [{key: 'k8s:io.cilium.k8s.namespace.labels.team', operator: NotIn, values: [w]}]}]}"), nil,
			outbound("x/a", to("x/* z/*"))},
		{"the entity world", ingress("{fromEntities: [world]}"), nil, inbound("x/a", from(theOutside))},
		{"the entity world of one family", ingress("{fromEntities: [world-ipv6]}"), nil,
			inbound("x/a", func(f flow) bool { return f.from == theOutside && f.ipv6 })},
		{"the entity all", ingress("{fromEntities: [all]}"), nil, all},
		{"the entity cluster", ingress("{fromEntities: [cluster]}"), nil, inbound("x/a", from("x/* w/* z/*"))},
		{"the entity host", egress("{toEntities: [host]}"), nil, outbound("x/a", to(theNode))},
		{"a CIDR is outside of the cluster", ingress("{fromCIDR: [0.0.0.0/0, '::/0']}"), nil, inbound("x/a", from(theOutside))},
		{"a CIDR less some", ingress("{fromCIDRSet: [{cidr: 192.0.2.0/24, except: [@outside/4]}, {cidr: '2001:db8::/32', except: ['2001:db8:3::/48']}]}"), nil,
			inbound("x/a", func(f flow) bool { return f.from == theOutside && f.ipv6 })},
		{"a CIDR to the world only", egress("{toCIDR: [0.0.0.0/0, '::/0']}"), nil, outbound("x/a", to(theOutside))},
		{"ports", ingress("{fromEndpoints: [{}], toPorts: [{ports: [{port: '81', protocol: TCP}, {port: '80', protocol: UDP}]}]}"), nil,
			inbound("x/a", func(f flow) bool { return within("x/*", f.from) && (on("tcp", 81)(f) || on("udp", 80)(f)) })},
		{"a port of any protocol", ingress("{toPorts: [{ports: [{port: '80'}]}]}"), nil, inbound("x/a", func(f flow) bool { return f.port == 80 })},
		{"a range of ports", ingress("{toPorts: [{ports: [{port: '79', endPort: 80, protocol: TCP}]}]}"), nil, inbound("x/a", on("tcp", 80))},
		{"a named port", ingress("{toPorts: [{ports: [{port: web, protocol: TCP}]}]}"), nil, inbound("x/a", on("tcp", 80))},
	})
}

func (w *world) ciliumDenies(t *testing.T) {
	const allowAll = "ingress: [{fromEntities: [all]}], "
	w.run(t, []policyCase{
		{"deny over allow", []string{ciliumPolicy("x", subjectA+allowAll+"ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from != "x/b" })},
		{"deny of a port over allow of the peer", []string{ciliumPolicy("x", subjectA+allowAll+"ingressDeny: [{toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return !on("tcp", 80)(f) })},
		{"deny of the peer over allow of a port", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: '80', protocol: TCP}]}]}], "+
			"ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil, inbound("x/a", func(f flow) bool { return f.from == "x/c" && on("tcp", 80)(f) })},
		{"deny inside of a range", []string{ciliumPolicy("x", subjectA+"ingress: [{toPorts: [{ports: [{port: '1', endPort: 65535, protocol: TCP}]}]}], "+
			"ingressDeny: [{toPorts: [{ports: [{port: '81', protocol: TCP}]}]}]")}, nil, inbound("x/a", on("tcp", 80))},
		{"a deny of Cilium's over an allow of Kubernetes'", []string{networkPolicy("x", selectA+"ingress: [{}]"),
			ciliumPolicy("x", subjectA+"ingressDeny: [{fromEntities: [world]}]")}, nil, inbound("x/a", func(f flow) bool { return f.from != theOutside })},
		{"deny of egress to the world", []string{ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toEntities: [world]}]")}, nil,
			outbound("x/a", func(f flow) bool { return f.to != theOutside })},
		{"a deny alone isolates", []string{ciliumPolicy("x", subjectA+"ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil, inbound("x/a", none)},
		{"a deny without default deny", []string{ciliumPolicy("x", subjectA+"enableDefaultDeny: {ingress: false}, ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from != "x/b" })},
		{"an allow without default deny", []string{ciliumPolicy("x", subjectA+"enableDefaultDeny: {ingress: false}, ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil, all},
		{"default deny is the other policy's", []string{ciliumPolicy("x", subjectA+"enableDefaultDeny: {ingress: false}, ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]"),
			ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{matchLabels: {app: c}}]}]")}, nil, inbound("x/a", from("x/b x/c"))},
		// CVE-2024-47825.
		{"a deny of a CIDR against a narrower allow", []string{ciliumPolicy("x", subjectA+"ingress: [{fromCIDR: [@outside/4, @outside/6]}], ingressDeny: [{fromCIDR: [192.0.0.0/8, '2001:db8::/32']}]")},
			nil, inbound("x/a", none)},
		{"a deny of a CIDR against a narrower allow without default deny", []string{
			ciliumPolicy("x", subjectA+"ingressDeny: [{fromCIDR: [192.0.0.0/8, '2001:db8::/32']}], ingress: [{fromEntities: [all]}]"),
			ciliumPolicy("x", subjectA+"enableDefaultDeny: {ingress: false}, ingress: [{fromCIDR: [@outside/4, @outside/6]}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from != theOutside })},
	})
}

func (w *world) ciliumICMP(t *testing.T) {
	services := append(usual, service{"icmp", 0})
	w.run(t, []policyCase{
		{"echo requests of both families", []string{ciliumPolicy("x", subjectA+"ingress: [{icmps: [{fields: [{family: IPv4, type: 8}, {family: IPv6, type: EchoRequest}]}]}]")}, services,
			inbound("x/a", on("icmp", 0))},
		{"another type", []string{ciliumPolicy("x", subjectA+"ingress: [{icmps: [{fields: [{family: IPv4, type: 13}]}]}]")}, services, inbound("x/a", none)},
		{"one family, and ports beside it", []string{ciliumPolicy("x", subjectA+"ingress: [{icmps: [{fields: [{family: IPv6, type: 128}]}]}, {toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]")},
			services, inbound("x/a", func(f flow) bool { return on("tcp", 80)(f) || on("icmp", 0)(f) && f.ipv6 })},
		{"a deny of echo requests", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}], ingressDeny: [{icmps: [{fields: [{family: IPv4, type: 8}]}]}]")}, services,
			inbound("x/a", func(f flow) bool { return !on("icmp", 0)(f) || f.ipv6 })},
	})
}

func (w *world) ciliumSubjects(t *testing.T) {
	const isolated = "ingress: [{fromEndpoints: []}]"
	w.run(t, []policyCase{
		{"of the whole cluster", []string{clusterwidePolicy(subjectA + "ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]")}, nil, inbound("x/a w/a z/a", from("x/b w/b"))},
		{"of the whole cluster, of one namespace", []string{clusterwidePolicy("endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': w}}, ingress: [{fromEntities: [world]}]")}, nil,
			inbound("w/*", from(theOutside))},
		{"several rules in one object", []string{"---\n{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {namespace: x, name: several}, specs: [" +
			"{endpointSelector: {matchLabels: {app: a}}, ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]}, " +
			"{endpointSelector: {matchLabels: {app: c}}, ingress: [{fromEndpoints: [{matchLabels: {app: a}}]}]}]}"}, nil,
			both(inbound("x/a", from("x/b")), inbound("x/c", from("x/a")))},
		// CVE-2025-64715: an empty list selects no peers, not all.
		{"an empty list of peers", []string{ciliumPolicy("x", subjectA+isolated)}, nil, inbound("x/a", none)},
		{"an empty list of CIDRs", []string{ciliumPolicy("x", subjectA+"ingress: [{fromCIDR: []}]")}, nil, inbound("x/a", none)},
		{"an empty list of entities", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEntities: []}]")}, nil, inbound("x/a", none)},
		// CVE-2023-41333: a policy of a namespace applies to that namespace only, regardless of its selector.
		{"a namespace cannot be escaped by its label: the policy is for its own", []string{ciliumPolicy("x", "endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': w, app: a}}, "+isolated)}, nil,
			inbound("x/a", none)},
		{"a namespace cannot be escaped by expressions", []string{ciliumPolicy("x", "endpointSelector: {matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}]}, "+isolated)}, nil,
			inbound("x/*", none)},
		{"a namespace cannot be escaped by a label that is not there", []string{ciliumPolicy("x", "endpointSelector: {matchExpressions: [{key: 'k8s:io.kubernetes.pod.namespace', operator: DoesNotExist}]}, "+isolated)},
			nil, all},
	})
}

// An unsupported part of a policy allows nothing, and denies everything that it names; other rules of the policy stay enforced.
func (w *world) unsupportedFailsClosed(t *testing.T) {
	const http = "toPorts: [{ports: [{port: '80', protocol: TCP}], rules: {http: [{method: GET}]}}]"
	w.run(t, []policyCase{
		{"HTTP", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{}], "+http+"}, {fromEndpoints: [{matchLabels: {app: b}}], toPorts: [{ports: [{port: '81', protocol: TCP}]}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from == "x/b" && on("tcp", 81)(f) })},
		{"DNS names", []string{ciliumPolicy("x", subjectA+"egress: [{toFQDNs: [{matchName: example.com}]}, {toEndpoints: [{matchLabels: {app: b}}]}]")}, nil, outbound("x/a", to("x/b"))},
		{"a label that no identity has", []string{networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchExpressions: [{key: pod-template-hash, operator: DoesNotExist}]}}]}]")}, nil,
			inbound("x/a", none)},
		{"audit mode denies nothing", []string{"---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: x, name: audited, annotations: {policy.waggle.io/mode: audit}}, " +
			"spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}"}, nil, all},
		{"audit mode takes nothing from the others", []string{"---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: x, name: audited, annotations: {policy.waggle.io/mode: audit}}, " +
			"spec: {podSelector: {matchLabels: {app: a}}, ingress: [{}]}}", networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")}, nil, inbound("x/a", from("x/b"))},
	})
}

// portsOfL7Rules: with --l7-rules=allow-port, rules about requests allow all connections of their peers on their ports, and the node reports these rules. Denies are
// not narrowed, and names of DNS are no peers. The default is in [world.unsupportedFailsClosed].
func (w *world) portsOfL7Rules(t *testing.T) {
	const tcp80 = "ports: [{port: '80', protocol: TCP}]"
	requests := func(spec string) []string { return []string{renamed("requests", ciliumPolicy("x", subjectA+spec))} }
	const problem = "CiliumNetworkPolicy x/requests spec."
	w.again(t, "--l7-rules=allow-port")
	w.runReported(t, []reportedCase{
		{policyCase{"HTTP", requests("ingress: [{fromEndpoints: [{matchLabels: {app: b}}], toPorts: [{" + tcp80 + ", rules: {http: [{method: GET}]}}]}]"), nil,
			inbound("x/a", func(f flow) bool { return f.from == "x/b" && on("tcp", 80)(f) })},
			[]string{problem + "ingress[0].toPorts[0].rules: Unsupported: toPorts.rules is not supported: the rule allows all connections on the port, because of --l7-rules=allow-port; "}},
		{policyCase{"DNS beside names of DNS", requests("egress: [{toEndpoints: [{}], toPorts: [{" + tcp80 + ", rules: {dns: [{matchPattern: '*'}]}}]}, {toFQDNs: [{matchName: example.com}]}]"), nil,
			outbound("x/a", func(f flow) bool { return within("x/*", f.to) && on("tcp", 80)(f) })},
			[]string{problem + "egress[0].toPorts[0].rules: Unsupported: ", problem + "egress[1].toFQDNs: Unsupported: "}},
		{policyCase{"a deny of requests", requests("ingress: [{fromEntities: [all]}], ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}], toPorts: [{" + tcp80 + ", rules: {http: [{method: GET}]}}]}]"), nil,
			inbound("x/a", func(f flow) bool { return f.from != "x/b" || !on("tcp", 80)(f) })}, []string{problem + "ingressDeny[0].toPorts[0].rules: Unsupported: "}},
	})
}
