package node_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

// policyCase is a set of policies and the connections of a world that they allow.
type policyCase struct {
	name     string
	policies []string
	services []service // nil means the usual ones
	want     func(flow) bool
}

// run applies each case's policies and tries all connections. Addresses of parties are written as @name/4 and @name/6 in policies.
func (w *world) run(t *testing.T, cases []policyCase) {
	t.Helper()
	var pairs []string
	for _, p := range w.parties {
		pairs = append(pairs, "@"+p.name+"/4", p.addrs[0].String()+"/32", "@"+p.name+"/6", p.addrs[1].String()+"/128")
	}
	addresses := strings.NewReplacer(append(pairs, "@gateway/4", w.party(marker).pod.Gateway(false).String()+"/32")...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w.apply(t, addresses.Replace(strings.Join(c.policies, "\n")))
			services := c.services
			if services == nil {
				services = usual
			}
			w.compare(t, services, c.want)
		})
	}
}

// objectNumbers numbers the generated names of policies.
var objectNumbers atomic.Int64

// object returns the manifest of a policy.
func object(kind, apiVersion, namespace, spec string) string {
	name := fmt.Sprintf("p%d", objectNumbers.Add(1))
	if namespace != "" {
		name += ", namespace: " + namespace
	}
	return fmt.Sprintf("---\n{apiVersion: %s, kind: %s, metadata: {name: %s}, spec: {%s}}", apiVersion, kind, name, spec)
}

// networkPolicy returns the manifest of a Kubernetes NetworkPolicy.
func networkPolicy(namespace, spec string) string {
	return object("NetworkPolicy", "networking.k8s.io/v1", namespace, spec)
}

// inbound returns the allowed connections when ingress to some parties is limited. Connections from the node are not limited.
func inbound(into string, allowed func(flow) bool) func(flow) bool {
	return func(f flow) bool { return !within(into, f.to) || f.from == theNode || allowed(f) }
}

// outbound returns the allowed connections when egress from some parties is limited.
func outbound(from string, allowed func(flow) bool) func(flow) bool {
	return func(f flow) bool { return !within(from, f.from) || allowed(f) }
}

// both returns the connections that a and b allow.
func both(a, b func(flow) bool) func(flow) bool { return func(f flow) bool { return a(f) && b(f) } }

// from and to match connections from, and to, some parties: names separated by spaces, in which "x/*" means all parties of a namespace.
func from(names string) func(flow) bool { return func(f flow) bool { return within(names, f.from) } }
func to(names string) func(flow) bool   { return func(f flow) bool { return within(names, f.to) } }

func none(flow) bool { return false }
func all(flow) bool  { return true }

func within(names, name string) bool {
	for one := range strings.FieldsSeq(names) {
		if namespace, found := strings.CutSuffix(one, "*"); one == name || found && strings.HasPrefix(name, namespace) {
			return true
		}
	}
	return false
}

// on matches connections to a port.
func on(protocol string, port uint16) func(flow) bool {
	return func(f flow) bool { return f.protocol == protocol && f.port == port }
}

// selectA selects the subject of most cases.
const selectA = "podSelector: {matchLabels: {app: a}}, "

// TestPrivilegedPolicy_Groups tests which connections policies allow, on one node for the policies of Kubernetes and on one for those of Cilium. The groups run
// one after the other: each case replaces all policies, so no group needs its own pods.
func TestPrivilegedPolicy_Groups(t *testing.T) {
	t.Parallel()
	type group struct {
		name string
		try  func(*world, *testing.T)
	}
	for _, kind := range []struct {
		name   string
		args   []string // flags of the agent
		groups []group
	}{
		{"Kubernetes", nil, []group{{"Selectors", (*world).kubernetesSelectors}, {"Directions", (*world).kubernetesDirections},
			{"Ports", (*world).kubernetesPorts}, {"Blocks", (*world).kubernetesBlocks}, {"RangesWithoutSubject", (*world).rangesWithoutSubject},
			{"Changes", (*world).changesOfLabels}}}, // the last group, because it changes labels of namespaces
		{"Cilium", []string{fmt.Sprint("--policy-cidrs-per-namespace=", smallQuota)}, []group{{"Peers", (*world).ciliumPeers}, {"Denies", (*world).ciliumDenies},
			{"ICMP", (*world).ciliumICMP}, {"Services", (*world).ciliumServices}, {"Subjects", (*world).ciliumSubjects},
			{"UnsupportedFailsClosed", (*world).unsupportedFailsClosed}, {"UncheckedConnections", (*world).uncheckedConnections},
			{"Requirements", (*world).ciliumRequirements}, {"RangesBeyondQuota", (*world).rangesBeyondQuota},
			{"OtherAddressesOfTheNode", (*world).otherAddressesOfTheNode},
			{"EchoOfTheOtherDirectionIsNoReply", (*world).echoOfTheOtherDirectionIsNoReply},
			{"EstablishedConnectionsAreReevaluated", (*world).establishedConnectionsAreReevaluated},
			{"RevokedClientsStayOut", (*world).revokedClientsStayOut},
			{"PortsOfL7Rules", (*world).portsOfL7Rules}}}, // the last group, because it starts the agent with another flag
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind.args...)
			for _, g := range kind.groups {
				t.Run(g.name, func(t *testing.T) { g.try(w, t) })
			}
		})
	}
}

func (w *world) kubernetesSelectors(t *testing.T) {
	peers := func(list string) []string {
		return []string{networkPolicy("x", selectA+"ingress: [{from: ["+list+"]}]")}
	}
	w.run(t, []policyCase{
		{"no policy", nil, append(usual, service{"icmp", 0}), all},
		{"pods by matchLabels", peers("{podSelector: {matchLabels: {app: b}}}"), append(usual, service{"icmp", 0}), inbound("x/a", from("x/b"))},
		{"pods by In", peers("{podSelector: {matchExpressions: [{key: app, operator: In, values: [b, c]}]}}"), nil, inbound("x/a", from("x/b x/c"))},
		{"pods by NotIn", peers("{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [b]}]}}"), nil, inbound("x/a", from("x/c"))},
		{"pods by NotIn, also without the label", peers("{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [back]}]}}"), nil,
			inbound("x/a", from("x/c"))},
		{"pods by Exists", peers("{podSelector: {matchExpressions: [{key: tier, operator: Exists}]}}"), nil, inbound("x/a", from("x/b"))},
		{"pods by DoesNotExist", peers("{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}"), nil, inbound("x/a", from("x/c"))},
		{"pods by labels and expressions together", peers("{podSelector: {matchLabels: {app: b}, matchExpressions: [{key: tier, operator: In, values: [front]}]}}"), nil,
			inbound("x/a", none)},
		{"all pods of the own namespace", peers("{podSelector: {}}"), nil, inbound("x/a", from("x/*"))},
		{"all pods of all namespaces", peers("{namespaceSelector: {}}"), nil, inbound("x/a", from("x/* w/* z/*"))},
		{"a namespace by matchLabels", peers("{namespaceSelector: {matchLabels: {team: w}}}"), nil, inbound("x/a", from("w/*"))},
		{"namespaces by In", peers("{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [w, z]}]}}"), nil,
			inbound("x/a", from("w/* z/*"))},
		{"namespaces by NotIn", peers("{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [x, w]}]}}"), nil,
			inbound("x/a", from("z/*"))},
		{"namespaces by Exists", peers("{namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}}"), nil, inbound("x/a", from("x/* w/* z/*"))},
		{"namespaces by DoesNotExist", peers("{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}"), nil, inbound("x/a", none)},
		{"pods and namespace in one peer", peers("{namespaceSelector: {matchLabels: {team: w}}, podSelector: {matchLabels: {app: a}}}"), nil, inbound("x/a", from("w/a"))},
		{"pods and namespace in two peers", peers("{namespaceSelector: {matchLabels: {team: w}}}, {podSelector: {matchLabels: {app: b}}}"), nil,
			inbound("x/a", from("w/* x/b"))},
		{"subjects by expressions", []string{networkPolicy("x", "podSelector: {matchExpressions: [{key: tier, operator: Exists}, {key: app, operator: NotIn, values: [b]}]}, policyTypes: [Ingress]")},
			nil, inbound("x/a", none)},
		{"an empty list of peers selects all peers", []string{networkPolicy("x", selectA+"ingress: [{from: []}]")}, nil, all},
		{"an empty rule selects all peers", []string{networkPolicy("x", selectA+"ingress: [{}]")}, nil, all},
		{"an empty list of rules selects no peer", []string{networkPolicy("x", selectA+"ingress: []")}, nil, inbound("x/a", none)},
		{"egress by pods", []string{networkPolicy("x", selectA+"policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]")}, nil,
			outbound("x/a", to("x/b"))},
		{"egress by namespace", []string{networkPolicy("x", selectA+"policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {team: w}}}]}]")}, nil,
			outbound("x/a", to("w/*"))},
	})
}

func (w *world) kubernetesDirections(t *testing.T) {
	w.run(t, []policyCase{
		{"default deny of ingress", []string{networkPolicy("x", "podSelector: {}, policyTypes: [Ingress]")}, nil, inbound("x/*", none)},
		{"default deny of egress", []string{networkPolicy("x", "podSelector: {}, policyTypes: [Egress]")}, nil, outbound("x/*", none)},
		{"default deny of both", []string{networkPolicy("x", "podSelector: {}, policyTypes: [Ingress, Egress]")}, append(usual, service{"icmp", 0}),
			both(inbound("x/*", none), outbound("x/*", none))},
		{"egress denies although ingress allows", []string{networkPolicy("x", selectA+"ingress: [{}]"), networkPolicy("w", "podSelector: {}, policyTypes: [Egress]")}, nil,
			outbound("w/*", none)},
		{"ingress denies although egress allows", []string{networkPolicy("x", selectA+"policyTypes: [Ingress]"), networkPolicy("w", "podSelector: {}, policyTypes: [Egress], egress: [{}]")},
			nil, inbound("x/a", none)},
		{"both must allow", []string{networkPolicy("x", selectA+"ingress: [{from: [{namespaceSelector: {matchLabels: {team: w}}}]}]"),
			networkPolicy("w", "podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {team: z}}}]}]")}, nil,
			both(inbound("x/a", from("w/*")), outbound("w/b", to("z/*")))},
		{"egress rules without policyTypes isolate both", []string{networkPolicy("x", selectA+"egress: [{to: [{podSelector: {}}]}]")}, nil,
			both(inbound("x/a", none), outbound("x/a", to("x/*")))},
		{"policies add up", []string{networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"),
			networkPolicy("x", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: w}}}], ports: [{port: 80}]}]"),
			networkPolicy("x", selectA+"policyTypes: [Ingress]")}, nil,
			both(inbound("x/a", func(f flow) bool { return within("x/b", f.from) || within("w/*", f.from) && on("tcp", 80)(f) }),
				inbound("x/b x/c", func(f flow) bool { return within("w/*", f.from) && on("tcp", 80)(f) }))},
	})
}

func (w *world) kubernetesPorts(t *testing.T) {
	ports := func(list string) []string {
		return []string{networkPolicy("x", "podSelector: {}, ingress: [{ports: ["+list+"]}]")}
	}
	w.run(t, []policyCase{
		{"the default protocol of a port is TCP", ports("{port: 80}"), append(usual, service{"icmp", 0}), inbound("x/*", on("tcp", 80))},
		{"a port of UDP", ports("{port: 80, protocol: UDP}"), nil, inbound("x/*", on("udp", 80))},
		{"a protocol without a port", ports("{protocol: UDP}"), append(usual, service{"udp", 53}), inbound("x/*", func(f flow) bool { return f.protocol == "udp" })},
		{"endPort", ports("{port: 78, endPort: 80}"), nil, inbound("x/*", on("tcp", 80))},
		{"endPort of everything", ports("{port: 1, endPort: 65535}"), nil, inbound("x/*", func(f flow) bool { return f.protocol == "tcp" })},
		{"SCTP opens no TCP, and isolates", ports("{port: 80, protocol: SCTP}"), nil, inbound("x/*", none)},
		{"a named port is each pod's own", ports("{port: web}"), nil,
			inbound("x/*", func(f flow) bool { return f.to == "x/a" && on("tcp", 80)(f) || f.to == "x/b" && on("tcp", 81)(f) })},
		{"a named port of another protocol", ports("{port: web, protocol: UDP}"), nil, inbound("x/*", none)},
		{"a named port without pod", ports("{port: ftp}"), nil, inbound("x/*", none)},
		{"a named port to elsewhere is each peer's own", []string{networkPolicy("z", selectA+"policyTypes: [Egress], egress: [{ports: [{port: web}]}]")}, nil,
			outbound("z/a", func(f flow) bool {
				return within("x/a w/a", f.to) && on("tcp", 80)(f) || f.to == "x/b" && on("tcp", 81)(f)
			})},
		{"ports and peers must both match", []string{networkPolicy("x", "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 81}]}, "+
			"{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}]}]")}, nil,
			inbound("x/*", func(f flow) bool { return f.from == "x/b" && on("tcp", 81)(f) || f.from == "x/c" && on("tcp", 80)(f) })},
	})
}

func (w *world) kubernetesBlocks(t *testing.T) {
	blocks := func(list string) string { return networkPolicy("x", selectA+"ingress: [{from: ["+list+"]}]") }
	const podsButB = "{ipBlock: {cidr: 10.244.1.0/24, except: [@x/b/4]}}, {ipBlock: {cidr: 'fd00:10:244:1::/64', except: [@x/b/6]}}"
	w.run(t, []policyCase{
		{"an address outside", []string{blocks("{ipBlock: {cidr: @outside/4}}, {ipBlock: {cidr: @outside/6}}")}, nil, inbound("x/a", from(theOutside))},
		{"one family alone", []string{blocks("{ipBlock: {cidr: 0.0.0.0/0}}")}, nil, inbound("x/a", func(f flow) bool { return !f.ipv6 })},
		{"addresses of pods", []string{blocks("{ipBlock: {cidr: 10.244.1.0/24}}, {ipBlock: {cidr: 'fd00:10:244:1::/64'}}")}, nil, inbound("x/a", from("x/* w/* z/*"))},
		{"an exception", []string{blocks(podsButB)}, nil, inbound("x/a", from("x/c w/* z/*"))},
		{"an address that another rule allows", []string{blocks(podsButB),
			networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 80}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return within("x/c w/* z/*", f.from) || f.from == "x/b" && on("tcp", 80)(f) })},
		{"an address that is excepted and in another block", []string{blocks(podsButB + ", {ipBlock: {cidr: @x/b/4}}")}, nil,
			inbound("x/a", func(f flow) bool { return within("x/c w/* z/*", f.from) || f.from == "x/b" && !f.ipv6 })},
		{"a whole world less one pod", []string{blocks("{ipBlock: {cidr: 0.0.0.0/0, except: [@w/a/4]}}, {ipBlock: {cidr: '::/0', except: [@w/a/6]}}")}, nil,
			inbound("x/a", func(f flow) bool { return f.from != "w/a" })},
		{"a whole world, inside of which another policy names ranges and one pod", []string{
			blocks("{ipBlock: {cidr: 0.0.0.0/0, except: [@w/a/4]}}, {ipBlock: {cidr: '::/0', except: [@w/a/6]}}"),
			networkPolicy("w", "podSelector: {matchLabels: {app: b}}, ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.1.0/24]}}, {ipBlock: {cidr: 'fd00::/16', except: ['fd00:10:244:1::/64']}}, "+
				"{ipBlock: {cidr: @x/b/4}}, {ipBlock: {cidr: @x/b/6}}, {ipBlock: {cidr: @w/a/4}}, {ipBlock: {cidr: @w/a/6}}]}]")}, nil,
			both(inbound("x/a", func(f flow) bool { return f.from != "w/a" }), inbound("w/b", from("x/b w/a")))},
		{"egress to the node and outside", []string{networkPolicy("x", selectA+"policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: @node/4}}, {ipBlock: {cidr: @node/6}}]}, "+
			"{to: [{ipBlock: {cidr: 192.0.2.0/28}}], ports: [{port: 80}]}]")}, nil,
			outbound("x/a", func(f flow) bool { return f.to == theNode || f.to == theOutside && !f.ipv6 && on("tcp", 80)(f) })},
		{"egress to all but the pods", []string{networkPolicy("x", selectA+"policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}, "+
			"{ipBlock: {cidr: '::/0', except: ['fd00::/16']}}]}]")}, nil, outbound("x/a", to(theNode+" "+theOutside))},
	})
}

// Labels of pods and namespaces change while policies stay, and policies while pods stay.
func (w *world) changesOfLabels(t *testing.T) {
	fromB := networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")
	fromY := networkPolicy("x", selectA+"ingress: [{from: [{namespaceSelector: {matchLabels: {team: w}}}]}]")
	relabel := func(name, from, to string) string {
		pods := map[string]string{}
		for pod, rest := range policyPods {
			if pod == name {
				rest = strings.Replace(rest, from, to, 1)
			}
			pods[pod] = rest
		}
		return podManifests(pods)
	}
	step := func(name string, change func(), want func(flow) bool) {
		t.Run(name, func(t *testing.T) {
			change()
			w.compare(t, usual, want)
		})
	}
	const team = "io.cilium.k8s.namespace.labels.team"
	labels := func(name string, change func(), changed map[string]string, want func(flow) bool) {
		step(name, func() { change(); w.awaitLabels(t, changed) }, want)
	}
	step("a policy is added", func() { w.apply(t, fromB) }, inbound("x/a", from("x/b")))
	step("it is another one", func() { w.apply(t, fromY) }, inbound("x/a", from("w/*")))
	step("it is deleted", func() { w.apply(t, "") }, all)
	step("it is added with another one", func() { w.apply(t, fromB+"\n"+fromY) }, inbound("x/a", from("x/b w/*")))
	step("one of two is deleted", func() { w.apply(t, fromB) }, inbound("x/a", from("x/b")))
	labels("a peer's label comes", func() { w.write(t, "pods.yaml", relabel("x/c", "app: c", "app: b")) },
		map[string]string{"x/c": "app=b"}, inbound("x/a", from("x/b x/c")))
	labels("a peer's label goes", func() { w.write(t, "pods.yaml", relabel("x/b", "app: b", "app: other")) },
		map[string]string{"x/b": "app=other", "x/c": "app=c"}, inbound("x/a", none))
	labels("a subject's label goes", func() { w.write(t, "pods.yaml", relabel("x/a", "app: a", "app: other")) },
		map[string]string{"x/a": "app=other", "x/b": "app=b"}, all)
	labels("all labels as before", func() { w.write(t, "pods.yaml", podManifests(policyPods)) },
		map[string]string{"x/a": "app=a"}, inbound("x/a", from("x/b")))
	step("policies about a namespace", func() { w.apply(t, fromY) }, inbound("x/a", from("w/*")))
	labels("a namespace's label goes", func() { w.write(t, "namespaces.yaml", namespaceManifests(map[string]string{"w": "team: none"})) },
		map[string]string{"w/a": team + "=none", "w/b": team + "=none"}, inbound("x/a", none))
	labels("it moves to another namespace", func() {
		w.write(t, "namespaces.yaml", namespaceManifests(map[string]string{"w": "team: none", "z": "team: w"}))
	}, map[string]string{"z/a": team + "=w", "z/liar": team + "=w"}, inbound("x/a", from("z/*")))
}

// The kubelet reaches pods regardless of policies, and --allow-localhost=policy disables that.
func TestPrivilegedPolicy_NodeToItsPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--allow-localhost=policy")
	w.run(t, []policyCase{
		{"nothing", []string{networkPolicy("x", "podSelector: {}, policyTypes: [Ingress]")}, nil, func(f flow) bool { return !within("x/*", f.to) }},
		{"the node's address among the pods", []string{networkPolicy("x", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: @gateway/4}}]}]")}, nil,
			func(f flow) bool { return !within("x/*", f.to) || f.from == theNode && !f.ipv6 }},
	})
}

// With policy enforcement disabled, or with all pods isolated.
func TestPrivilegedPolicy_Modes(t *testing.T) {
	t.Parallel()
	deny := networkPolicy("x", "podSelector: {}, policyTypes: [Ingress, Egress]")
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "--enable-policy=never")
		w.write(t, "policies.yaml", deny)
		w.awaitPolicies(t, 1)
		w.compare(t, usual, all)
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "--enable-policy=always")
		w.compare(t, usual, func(f flow) bool { return f.from == theNode })
		w.apply(t, networkPolicy("x", selectA+"policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]"))
		w.compare(t, usual, func(f flow) bool {
			return f.from == theNode || f.to == "x/a" && f.from == theOutside || f.from == "x/a" && within(theNode+" "+theOutside, f.to)
		})
	})
}

// awaitPolicies waits until the agent has read the given number of policies.
func (w *world) awaitPolicies(t *testing.T, count int) {
	t.Helper()
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "db", "show", "k8s-networkpolicies")
		if err == nil && strings.Count(text, "\n") != count+1 {
			err = fmt.Errorf("want %d policies:\n%s", count, text)
		}
		return err
	})
}
