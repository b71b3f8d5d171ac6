package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

func TestFromCilium_Semantics(t *testing.T) {
	t.Parallel()
	nodes := policy.Options{CIDRMatchesNodes: true}
	for _, c := range []semantics{
		// Default deny.
		{name: "a section isolates its direction", policies: cnp("endpointSelector: {}, ingress: [{}]"),
			deny: []string{"in web>db 80/TCP", "in world>db 80/TCP"}, allow: []string{"out db>web 80/TCP", "in web>green 80/TCP"}},
		{name: "an empty section has no effect", policies: cnp("endpointSelector: {}, ingress: [], egressDeny: []"),
			allow: []string{"in web>db 80/TCP", "out web>db 80/TCP"}},
		{name: "a deny section isolates too", policies: cnp("endpointSelector: {}, ingressDeny: [{fromEntities: [world]}]"),
			deny: []string{"in web>db 80/TCP", "in world>db 80/TCP"}},
		{name: "without default deny", policies: cnp("endpointSelector: {}, enableDefaultDeny: {ingress: false}, ingressDeny: [{fromEntities: [world]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in world>db 80/TCP"}},
		{name: "default deny without rules", policies: cnp("endpointSelector: {}, enableDefaultDeny: {egress: true}"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"out web>db 80/TCP"}},
		{name: "without default deny, beside a policy with it",
			policies: cnp("endpointSelector: {}, enableDefaultDeny: {ingress: false}, ingress: [{fromEndpoints: [{}]}]") + netpol("podSelector: {}"),
			allow:    []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP"}},

		// Subjects.
		{name: "subjects by label", policies: cnp("endpointSelector: {matchLabels: {app: db}}, ingress: [{}]"),
			deny: []string{"in web>db 80/TCP"}, allow: []string{"in db>web 80/TCP"}},
		{name: "subjects by labels with a source", policies: cnp("endpointSelector: {matchLabels: {\"k8s:app\": db}, matchExpressions: [{key: \"any:tier\", operator: In, values: [back]}]}, ingress: [{}]"),
			deny: []string{"in web>db 80/TCP"}, allow: []string{"in db>web 80/TCP"}},
		{name: "a policy of the cluster", policies: ccnp("endpointSelector: {matchLabels: {app: web}}, ingress: [{}]"),
			deny: []string{"in db>web 80/TCP", "in db>green 80/TCP"}, allow: []string{"in web>db 80/TCP"}},
		{name: "a policy of the cluster for a namespace", policies: ccnp("endpointSelector: {matchLabels: {io.kubernetes.pod.namespace: red}}, ingress: [{}]"),
			deny: []string{"in db>web 80/TCP"}, allow: []string{"in db>green 80/TCP", "in db>liar 80/TCP"}},
		{name: "several specs", policies: specs2(),
			deny: []string{"in web>db 80/TCP", "out web>db 80/TCP"}, allow: []string{"in db>web 80/TCP", "out db>web 80/TCP", "out web>world 80/TCP"}},

		// Peers.
		{name: "no peers, with ports, selects all peers", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\"}]}]}]"),
			allow: []string{"in web>db 80/TCP", "in world>db 80/UDP", "in host>db 80/SCTP"}, deny: []string{"in web>db 81/TCP", "in web>db 80/GRE"}},
		{name: "an empty list of endpoints selects no peer", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: []}, {fromEndpoints: [], toPorts: [{ports: [{port: \"80\"}]}]}]"),
			deny: []string{"in web>db 80/TCP", "in world>db 80/TCP", "in host>db 1/UDP"}},
		{name: "so are other empty lists", policies: cnp("endpointSelector: {}, egress: [{toCIDR: []}, {toCIDRSet: []}, {toEntities: []}, {toFQDNs: []}, {toServices: []}, {toNodes: []}, {toGroups: []}]"),
			deny: []string{"out web>db 80/TCP", "out web>world 80/TCP", "out web>host 80/TCP"}},
		{name: "an empty selector is the namespace", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in liar>db 80/TCP", "in world>db 80/TCP", "in host>db 80/TCP"}},
		{name: "in a policy of the cluster, it is all pods", policies: ccnp("endpointSelector: {}, ingress: [{fromEndpoints: [{}]}]"),
			allow: []string{"in web>db 80/TCP", "in green>db 80/TCP"}, deny: []string{"in world>db 80/TCP", "in host>db 80/TCP", "in init>db 80/TCP"}},
		{name: "peers of another namespace", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {\"k8s:io.kubernetes.pod.namespace\": green, app: web}}]}]"),
			allow: []string{"in green>db 80/TCP"}, deny: []string{"in web>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "peers of any namespace", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchExpressions: [{key: io.kubernetes.pod.namespace, operator: Exists}]}]}]"),
			allow: []string{"in green>db 80/TCP", "in web>db 80/TCP"}, deny: []string{"in world>db 80/TCP"}},
		{name: "peers by a label of their namespace, which pods cannot imitate",
			policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {io.cilium.k8s.namespace.labels.team: a}}]}]"),
			allow:    []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "requirements narrow the rules of all policies", policies: cnp("endpointSelector: {}, ingress: [{fromRequires: [{matchLabels: {app: web}}]}]") +
			ccnp("endpointSelector: {}, ingress: [{fromEndpoints: [{}]}, {fromEntities: [world]}]"),
			allow: []string{"in web>db 80/TCP", "in world>db 80/TCP"}, deny: []string{"in db>db 80/TCP", "in host>db 80/TCP"}},
		{name: "they allow no peer", policies: cnp("endpointSelector: {}, ingress: [{fromRequires: [{}]}]"), deny: []string{"in web>db 80/TCP"}},
		{name: "they do not narrow entities", policies: cnp("endpointSelector: {}, ingress: [{fromRequires: [{matchLabels: {app: web}}]}, {fromEntities: [cluster]}]"),
			allow: []string{"in web>db 80/TCP", "in db>db 80/TCP"}},
		{name: "they narrow one direction", policies: cnp("endpointSelector: {}, ingress: [{fromRequires: [{matchLabels: {app: web}}]}, {fromEndpoints: [{}]}], egress: [{toEndpoints: [{}]}]"),
			allow: []string{"in web>db 80/TCP", "out web>db 80/TCP"}, deny: []string{"in db>db 80/TCP"}},
		{name: "requirements of denies narrow denies", policies: cnp("endpointSelector: {}, ingressDeny: [{fromRequires: [{matchLabels: {app: web}}]}, {fromEndpoints: [{}]}], ingress: [{fromEntities: [all]}]"),
			allow: []string{"in db>db 80/TCP"}, deny: []string{"in web>db 80/TCP"}},
		{name: "a namespace does not narrow what the cluster denies", policies: cnp("endpointSelector: {}, ingressDeny: [{fromRequires: [{matchLabels: {app: web}}]}], ingress: [{fromEntities: [all]}]") +
			ccnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: [{}]}]"), deny: []string{"in db>db 80/TCP", "in web>db 80/TCP"}},
		{name: "the cluster narrows what a namespace denies", policies: ccnp("endpointSelector: {}, ingressDeny: [{fromRequires: [{matchLabels: {app: web}}]}], ingress: [{fromEntities: [all]}]") +
			cnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: [{}]}]"), allow: []string{"in db>db 80/TCP"}, deny: []string{"in web>db 80/TCP"}},
		{name: "an excluded namespace leaves the pods of other namespaces", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [" + notGreen + "]}], egress: [{toEndpoints: [" + notGreen + "]}]"),
			allow: []string{"in web>db 80/TCP", "out web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in world>db 80/TCP", "in node>db 80/TCP",
				"in host>db 80/TCP", "in init>db 80/TCP", "out db>world 80/TCP", "out db>node 80/TCP", "out db>api 80/TCP", "out db>green 80/TCP"}},
		{name: "so does an excluded label of namespaces", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [" + notTeamA + "]}]"),
			allow: []string{"in green>db 80/TCP"}, deny: []string{"in web>db 80/TCP", "in world>db 80/TCP", "in node>db 80/TCP", "in host>db 80/TCP"}},
		{name: "a peer without namespace cannot be selected", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchExpressions: [{key: io.kubernetes.pod.namespace, operator: DoesNotExist}]}]}]"),
			deny: []string{"in web>db 80/TCP", "in green>db 80/TCP", "in world>db 80/TCP", "in node>db 80/TCP"}},
		{name: "an excluded reserved label leaves the namespace", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [" + webNotHost + "]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in green>db 80/TCP", "in world>db 80/TCP", "in node>db 80/TCP"}},
		{name: "in a policy of the cluster, excluding leaves pods", policies: ccnp("endpointSelector: {}, ingress: [{fromEndpoints: [" + notGreen + ", {matchExpressions: [{key: \"reserved:host\", operator: DoesNotExist}]}]}]"),
			allow: []string{"in web>db 80/TCP", "in green>db 80/TCP"}, deny: []string{"in world>db 80/TCP", "in node>db 80/TCP", "in host>db 80/TCP", "in init>db 80/TCP"}},
		{name: "a deny selects all peers that it does not exclude", policies: cnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: [" + notGreen + "]}], ingress: [{fromEntities: [all]}]"),
			deny: []string{"in web>db 80/TCP", "in world>db 80/TCP", "in node>db 80/TCP"}, allow: []string{"in green>db 80/TCP"}},
		{name: "a deny with an excluded reserved label, too", policies: cnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: [" + webNotHost + "]}], ingress: [{fromEntities: [all]}]"),
			deny: []string{"in web>db 80/TCP", "in green>db 80/TCP"}, allow: []string{"in db>web 80/TCP", "in world>db 80/TCP"}},
		{name: "reserved labels, which pods cannot imitate", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {\"reserved:host\": \"\"}}]}]"),
			allow: []string{"in host>db 80/TCP"}, deny: []string{"in liar>db 80/TCP", "in web>db 80/TCP", "in node>db 80/TCP"}},
		{name: "any source is never reserved", policies: ccnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {\"any:host\": \"\"}}, {matchLabels: {host: \"\"}}]}]"),
			deny: []string{"in host>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "a key with a source in it is a key", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {app: db}}]}]"),
			allow: []string{"in db>web 80/TCP"}, deny: []string{"in liar>web 80/TCP"}},
		{name: "CIDRs match neither pods nor nodes", policies: cnp("endpointSelector: {}, ingress: [{fromCIDR: [0.0.0.0/0, \"::/0\"]}]"),
			allow: []string{"in world>db 80/TCP"}, deny: []string{"in web>db 80/TCP", "in host>db 80/TCP", "in node>db 80/TCP", "in api>db 80/TCP", "in health>db 80/TCP"}},
		{name: "CIDRs match nodes if configured", options: nodes, policies: cnp("endpointSelector: {}, ingress: [{fromCIDR: [192.168.0.0/24, \"fd01::/64\"]}]"),
			allow: []string{"in host>db 80/TCP", "in node>db 80/TCP", "in api>db 80/TCP"}, deny: []string{"in world>db 80/TCP", "in health>db 80/TCP"}},
		{name: "an address is a CIDR", policies: cnp("endpointSelector: {}, egress: [{toCIDR: [203.0.113.1]}]"),
			allow: []string{"out db>world 80/TCP"}, deny: []string{"out db>world2 80/TCP"}, only: 4},
		{name: "except", policies: cnp("endpointSelector: {}, egress: [{toCIDRSet: [{cidr: 203.0.113.0/24, except: [203.0.113.128/25]}]}]"),
			allow: []string{"out db>world 80/TCP"}, deny: []string{"out db>world2 80/TCP"}, only: 4},
		{name: "both forms of CIDRs", policies: cnp("endpointSelector: {}, egress: [{toCIDR: [203.0.113.129/32], toCIDRSet: [{cidr: 203.0.113.1/32}]}]"),
			allow: []string{"out db>world 80/TCP", "out db>world2 80/TCP"}, deny: []string{"out db>web 80/TCP"}, only: 4},
		{name: "world", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [world]}]"),
			allow: []string{"in world>db 80/TCP"}, deny: []string{"in web>db 80/TCP", "in host>db 80/TCP", "in node>db 80/TCP"}},
		{name: "world of a family", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [world-ipv6]}]"), allow: []string{"in world>db 80/TCP"}, only: 6},
		{name: "world of the other family", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [world-ipv4]}]"), deny: []string{"in world>db 80/TCP"}, only: 6},
		{name: "all", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [all]}]"),
			allow: []string{"in world>db 80/TCP", "in green>db 80/TCP", "in host>db 80/TCP", "in init>db 80/TCP"}},
		{name: "none", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [none]}]"), deny: []string{"in world>db 80/TCP", "in web>db 80/TCP"}},
		{name: "cluster", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [cluster]}]"),
			allow: []string{"in web>db 80/TCP", "in green>db 80/TCP", "in host>db 80/TCP", "in node>db 80/TCP", "in api>db 80/TCP", "in init>db 80/TCP"},
			deny:  []string{"in world>db 80/TCP"}},
		{name: "host and other entities", policies: cnp("endpointSelector: {}, ingress: [{fromEntities: [host, health]}]"),
			allow: []string{"in host>db 80/TCP", "in health>db 80/TCP"}, deny: []string{"in node>db 80/TCP", "in init>db 80/TCP", "in liar>db 80/TCP"}},
		{name: "the API server, which is a node", policies: cnp("endpointSelector: {}, egress: [{toEntities: [kube-apiserver]}]"),
			allow: []string{"out web>api 80/TCP"}, deny: []string{"out web>node 80/TCP", "out web>host 80/TCP"}},
		{name: "remote nodes", policies: cnp("endpointSelector: {}, egress: [{toEntities: [remote-node]}]"),
			allow: []string{"out web>api 80/TCP", "out web>node 80/TCP"}, deny: []string{"out web>host 80/TCP"}},
		// With both families enabled, the world has the label of a family. Only the entity "world" includes both, as in Cilium.
		{name: "the label of the world selects no peer of a family", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [" + worldLabel + "]}], egress: [{toEndpoints: [" + worldLabel + "]}]"),
			deny: []string{"out web>world 80/TCP", "in world>web 80/TCP", "out web>db 80/TCP", "out web>liar 80/TCP", "out web>host 80/TCP", "out web>node 80/TCP"}},
		{name: "the label of the world of a family", policies: cnp("endpointSelector: {}, egress: [{toEndpoints: [{matchLabels: {\"reserved:world-ipv4\": \"\"}}]}]"),
			allow: []string{"out web>world 80/TCP", "out web>world2 80/UDP"}, deny: []string{"out web>db 80/TCP", "out web>node 80/TCP"}, only: 4},
		{name: "the label of the world of the other family", policies: cnp("endpointSelector: {}, egress: [{toEndpoints: [{matchLabels: {\"reserved:world-ipv4\": \"\"}}]}]"),
			deny: []string{"out web>world 80/TCP", "out web>db 80/TCP"}, only: 6},

		// Ports.
		{name: "peers and ports must both match", policies: cnp("endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {app: web}}], toPorts: [{ports: [{port: \"80\", protocol: TCP}]}]}]"),
			allow: []string{"in web>db 80/TCP"}, deny: []string{"in web>db 81/TCP", "in db>web 80/TCP", "in web>db 80/UDP"}},
		{name: "ranges", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\", endPort: 90, protocol: TCP}, {port: \"443\", endPort: 0, protocol: TCP}]}]}]"),
			allow: []string{"in web>db 80/TCP", "in web>db 90/TCP", "in web>db 443/TCP"}, deny: []string{"in web>db 79/TCP", "in web>db 91/TCP", "in web>db 444/TCP"}},
		{name: "port 0 of one protocol", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"0\", protocol: UDP}]}]}]"),
			allow: []string{"in web>db 1/UDP"}, deny: []string{"in web>db 1/TCP", "in web>db 0/GRE"}},
		{name: "port 0 of any protocol", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"0\", protocol: ANY}]}]}]"),
			allow: []string{"in web>db 1/TCP", "in web>db 0/GRE", "in web>db 0/echo"}},
		{name: "named ports", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: Web, protocol: TCP}, {port: dns}]}]}]"),
			allow: []string{"in db>web 8080/TCP", "in web>db 9090/TCP", "in db>web 53/UDP"}, deny: []string{"in web>db 8080/TCP", "in db>web 53/TCP", "in web>db 53/UDP"}},
		{name: "types of ICMP", policies: cnp("endpointSelector: {}, ingress: [{icmps: [{fields: [{type: 8}, {family: IPv6, type: EchoRequest}]}]}]"),
			allow: []string{"in web>db 0/echo"}, deny: []string{"in web>db 3/ICMP", "in web>db 8/ICMPv6", "in web>db 8/TCP", "in web>db 128/ICMP"}},
		{name: "types of ICMP as ports", policies: cnp("endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"8\", protocol: ICMP}, {port: \"128\", protocol: ICMPV6}]}]}]"),
			allow: []string{"in web>db 0/echo"}, deny: []string{"in web>db 128/ICMP", "in web>db 8/ICMPv6"}},

		// Deny rules.
		{name: "deny wins over a narrower allow",
			policies: cnp("endpointSelector: {}, egressDeny: [{toCIDR: [203.0.113.0/24]}], egress: [{toCIDR: [203.0.113.1/32]}, {toEntities: [all]}]"),
			deny:     []string{"out web>world 80/TCP", "out web>world2 80/TCP"}, allow: []string{"out web>db 80/TCP"}, only: 4},
		{name: "deny wins over an allow that sets no default deny (CVE-2024-47825)",
			policies: cnp("endpointSelector: {}, egressDeny: [{toCIDR: [203.0.113.0/24]}]") +
				cnp("endpointSelector: {}, enableDefaultDeny: {egress: false}, egress: [{toCIDR: [203.0.113.1/32]}]"),
			deny: []string{"out web>world 80/TCP"}, only: 4},
		{name: "deny wins over NetworkPolicies", policies: ccnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: [{matchLabels: {app: web}}], toPorts: [{ports: [{port: \"80\"}]}]}]") +
			netpol("podSelector: {}, ingress: [{}]"), deny: []string{"in web>db 80/TCP", "in green>db 80/UDP"}, allow: []string{"in web>db 81/TCP", "in db>web 80/TCP"}},
		{name: "a range excluded from a deny is not denied", policies: cnp("endpointSelector: {}, egressDeny: [{toCIDRSet: [{cidr: 203.0.113.0/24, except: [203.0.113.128/25]}]}], egress: [{toEntities: [all]}]"),
			deny: []string{"out web>world 80/TCP"}, allow: []string{"out web>world2 80/TCP"}, only: 4},
		{name: "an item that denies nothing", policies: cnp("endpointSelector: {}, ingressDeny: [{}, {fromEndpoints: []}], ingress: [{fromEntities: [all]}]"),
			allow: []string{"in web>db 80/TCP"}},
		{name: "the local host is not denied where probes must pass", options: policy.Options{AllowLocalhost: true},
			policies: cnp("endpointSelector: {}, ingressDeny: [{fromEntities: [all]}]"), allow: []string{"in host>db 80/TCP"}, deny: []string{"in node>db 80/TCP"}},

		// enableDefaultDeny, and the local host in egress.
		{name: "default deny without a rule isolates", policies: cnp("endpointSelector: {}, enableDefaultDeny: {ingress: true}"),
			deny: []string{"in web>db 80/TCP"}, allow: []string{"out web>db 80/TCP"}},
		// In Cilium, a rule about names without default deny leaves egress open; beside a policy that isolates, Waggle's rule allows nothing.
		{name: "names without default deny", policies: cnp("endpointSelector: {}, enableDefaultDeny: {egress: false}, egress: [" + toName + "]"),
			allow: []string{"out web>world 80/TCP", "out web>world2 53/UDP", "out web>db 80/TCP", "out web>host 80/TCP", "in web>db 80/TCP"}},
		{name: "names without default deny, beside a policy with it",
			policies: cnp("endpointSelector: {}, enableDefaultDeny: {egress: false}, egress: ["+toName+"]") + cnp("endpointSelector: {}, egress: [{toEndpoints: [{}]}]"),
			allow:    []string{"out web>db 80/TCP", "in world>web 80/TCP"}, deny: []string{"out web>world 80/TCP", "out web>host 80/TCP"}},
		{name: "names with default deny in the other direction",
			policies: cnp("endpointSelector: {}, enableDefaultDeny: {egress: false, ingress: true}, egress: [" + toName + "]"),
			allow:    []string{"out web>world 80/TCP", "out web>green 80/TCP"}, deny: []string{"in web>db 80/TCP", "in world>db 80/TCP"}},
		{name: "the node is a peer as any in egress", options: policy.Options{AllowLocalhost: true}, policies: netpol("podSelector: {}, policyTypes: [Egress]"),
			deny: []string{"out web>host 80/TCP"}, allow: []string{"in host>web 80/TCP"}},

		// A namespaced policy selects only its own pods (CVE-2023-41333).
		{name: "no escape by the absence of a reserved label", policies: cnp("endpointSelector: {matchExpressions: [{key: \"reserved:init\", operator: DoesNotExist}]}, ingress: [{}]"),
			deny: []string{"in web>db 80/TCP"}, allow: []string{"in web>green 80/TCP", "in web>init 80/TCP", "in web>host 80/TCP", "in web>liar 80/TCP"}},
		{name: "no escape by a reserved label", policies: cnp("endpointSelector: {matchLabels: {\"reserved:init\": \"\"}}, ingress: [{}]"),
			allow: []string{"in web>db 80/TCP", "in web>green 80/TCP", "in web>init 80/TCP"}},
	} {
		c.check(t, policy.Environment{Cluster: "test"})
	}
}

// A rule about names, and selectors of peers.
const (
	toName     = "{toFQDNs: [{matchName: a.example}], toPorts: [{ports: [{port: \"80\"}]}]}"
	notGreen   = "{matchExpressions: [{key: \"k8s:io.kubernetes.pod.namespace\", operator: NotIn, values: [green]}]}"
	notTeamA   = "{matchExpressions: [{key: io.cilium.k8s.namespace.labels.team, operator: NotIn, values: [a]}]}"
	webNotHost = "{matchLabels: {app: web}, matchExpressions: [{key: \"reserved:host\", operator: DoesNotExist}]}"
	worldLabel = "{matchLabels: {\"reserved:world\": \"\"}}"
)

// specs2 returns a policy with two specs.
func specs2() string {
	return "---\n{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: s, namespace: red}, specs: [" +
		"{endpointSelector: {matchLabels: {app: db}}, ingress: [{}]}, {endpointSelector: {matchLabels: {app: web}}, egress: [{toEntities: [world]}]}]}\n"
}

// TestFromCilium_FailsClosed: with an unsupported or invalid field an allow rule allows nothing, a deny rule denies all that it may mean, and the field is
// reported.
func TestFromCilium_FailsClosed(t *testing.T) {
	t.Parallel()
	const unsupported, invalid = policy.ReasonUnsupported, policy.ReasonInvalid
	all := ", ingress: [{fromEntities: [all]}], egress: [{toEntities: [all]}]"
	for name, c := range map[string]struct{ spec, path, reason, message, allow, deny string }{
		"requests": {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: \"80\"}], rules: {http: [{}]}}]}, {toPorts: [{ports: [{port: \"443\"}]}]}]",
			"spec.ingress[0].toPorts[0].rules", unsupported, "the rule allows nothing", "in web>db 443/TCP", "in web>db 80/TCP"},
		"names of TLS": {"endpointSelector: {}, egress: [{toPorts: [{ports: [{port: \"443\"}], serverNames: [a.example]}]}]",
			"spec.egress[0].toPorts[0].serverNames", unsupported, "allows nothing", "", "out web>world 443/TCP"},
		"a listener": {"endpointSelector: {}, egress: [{toPorts: [{ports: [{port: \"443\"}], listener: {name: x}}]}]",
			"spec.egress[0].toPorts[0].listener", unsupported, "allows nothing", "", "out web>world 443/TCP"},
		"ends of TLS": {"endpointSelector: {}, egress: [{toPorts: [{ports: [{port: \"443\"}], originatingTLS: {secret: {name: x}}}]}]",
			"spec.egress[0].toPorts[0].originatingTLS", unsupported, "allows nothing", "", "out web>world 443/TCP"},
		"names of DNS": {"endpointSelector: {}, egress: [{toFQDNs: [{matchName: a.example}]}]",
			"spec.egress[0].toFQDNs", unsupported, "use CIDRs", "", "out web>world 80/TCP"},
		"names of DNS without default deny": {"endpointSelector: {}, enableDefaultDeny: {egress: false}, egress: [" + toName + "]",
			"spec.egress[0].toFQDNs", unsupported, "use CIDRs", "out web>world 80/TCP", ""},
		"groups":                         {"endpointSelector: {}, egress: [{toGroups: [{aws: {}}]}]", "spec.egress[0].toGroups", unsupported, "use CIDRs", "", "out web>world 80/TCP"},
		"nodes":                          {"endpointSelector: {}, ingress: [{fromNodes: [{}]}]", "spec.ingress[0].fromNodes", unsupported, "use fromEntities", "", "in node>db 80/TCP"},
		"only a requirement, with ports": {"endpointSelector: {}, ingress: [{fromRequires: [{matchLabels: {app: web}}], toPorts: [{ports: [{port: \"80\"}]}]}]", "spec.ingress[0].fromRequires", invalid, "selects no peer by itself", "", "in web>db 80/TCP"},
		"a bad requirement":              {"endpointSelector: {}, ingress: [{fromRequires: [{matchExpressions: [{key: app, operator: Like}]}]}, {fromEndpoints: [{}]}, {fromEntities: [world]}]", "spec.ingress[0].fromRequires[0]", invalid, "does not exist", "in world>db 80/TCP", "in web>db 80/TCP"},
		"a null requirement":             {"endpointSelector: {}, ingress: [{fromRequires: null}, {fromEndpoints: [{}]}]", "spec.ingress[0]", invalid, "a null", "", "in web>db 80/TCP"},
		"a requirement of a CIDR":        {"endpointSelector: {}, ingress: [{fromRequires: [{matchLabels: {\"cidr:10.0.0.0/8\": \"\"}}]}, {fromEndpoints: [{}]}]", "spec.ingress[0].fromRequires[0]", unsupported, "use CIDRs", "", "in web>db 80/TCP"},
		"authentication":                 {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], authentication: {mode: required}}]", "spec.ingress[0].authentication", unsupported, "allows nothing", "", "in web>db 80/TCP"},
		"authentication beside another rule": {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {app: web}}], authentication: {mode: required}, toPorts: [{ports: [{port: \"80\"}]}]}, {fromEndpoints: [{}]}]",
			"spec.ingress[0].authentication", unsupported, "also where another rule allows them", "in web>db 81/TCP", "in web>db 80/TCP"},
		"authentication without peers": {"endpointSelector: {}, ingress: [{authentication: {mode: required}}, {fromEndpoints: [{}]}]",
			"spec.ingress[0].authentication", unsupported, "", "in web>db 81/TCP", ""},
		"names of TLS beside another rule": {"endpointSelector: {}, egress: [{toEntities: [world], toPorts: [{ports: [{port: \"443\"}], serverNames: [a.example]}, {ports: [{port: \"80\"}]}]}, {toEntities: [all]}]",
			"spec.egress[0].toPorts[0].serverNames", unsupported, "also where another rule allows them", "out web>world 80/TCP", "out web>world 443/TCP"},
		"authentication and requests beside another rule": {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {app: web}}], authentication: {mode: required}, toPorts: [{ports: [{port: \"80\"}], rules: {http: [{method: GET}]}}]}, {fromEndpoints: [{}]}]",
			"spec.ingress[0].authentication", unsupported, "also where another rule allows them", "in web>db 81/TCP", "in web>db 80/TCP"},
		"names of TLS and requests beside another rule": {"endpointSelector: {}, egress: [{toEntities: [world], toPorts: [{ports: [{port: \"443\"}], serverNames: [a.example], rules: {http: [{}]}}, {ports: [{port: \"80\"}]}]}, {toEntities: [all]}]",
			"spec.egress[0].toPorts[0].serverNames", unsupported, "also where another rule allows them", "out web>world 80/TCP", "out web>world 443/TCP"},
		"names of TLS of unsupported peers": {"endpointSelector: {}, egress: [{toFQDNs: [{matchName: a.example}], toPorts: [{ports: [{port: \"443\"}], serverNames: [a.example]}]}, {toEntities: [all]}]",
			"spec.egress[0].toPorts[0].serverNames", unsupported, "also where another rule allows them", "out web>world 80/TCP", "out web>world 443/TCP"},
		"names of TLS without ports": {"endpointSelector: {}, egress: [{toEntities: [world], toPorts: [{serverNames: [a.example]}]}, {toEntities: [all]}]",
			"spec.egress[0].toPorts[0].serverNames", unsupported, "also where another rule allows them", "out web>db 80/TCP", "out web>world 80/TCP"},
		"no authentication":     {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], authentication: {mode: disabled}}]", "", "", "", "in web>db 80/TCP", "in green>db 80/TCP"},
		"labels of CIDRs":       {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {\"cidr:10.0.0.0/8\": \"\"}}]}]", "spec.ingress[0].fromEndpoints[0]", unsupported, "use CIDRs", "", "in world>db 80/TCP"},
		"an unknown peer":       {"endpointSelector: {}, ingress: [{fromMoon: [{}], toPorts: [{ports: [{port: \"80\"}]}]}]", "spec.ingress[0].fromMoon", unsupported, "the field is unknown", "", "in web>db 80/TCP"},
		"an unknown limit":      {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: \"80\"}], during: night}]}]", "spec.ingress[0].toPorts[0].during", unsupported, "the field is unknown", "", "in web>db 80/TCP"},
		"an unknown field":      {"endpointSelector: {}, ingress: [{fromEndpoints: [{}]}], during: night", "spec.during", unsupported, "no rule of spec allows anything", "", "in web>db 80/TCP"},
		"nothing but unknown":   {"endpointSelector: {}, ingres: [{fromEndpoints: [{}]}]", "spec.ingres", unsupported, "leave it out", "", "in web>db 80/TCP"},
		"a port's limit":        {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\", during: night}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "unknown field", "", "in web>db 80/TCP"},
		"a selector's limit":    {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabel: {app: web}}]}]", "spec.ingress[0].fromEndpoints[0]", invalid, "unknown field", "", "in web>db 80/TCP"},
		"two ways of peers":     {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], fromEntities: [host]}]", "spec.ingress[0]", invalid, "several ways", "", "in web>db 80/TCP"},
		"ports and ICMP":        {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\"}]}], icmps: [{fields: [{type: 8}]}]}]", "spec.ingress[0]", invalid, "a rule each", "", "in web>db 80/TCP"},
		"a null":                {"endpointSelector: {}, ingress: [{fromEndpoints: null, toPorts: [{ports: [{port: \"80\"}]}]}]", "spec.ingress[0]", invalid, "a null", "", "in web>db 80/TCP"},
		"no ports":              {"endpointSelector: {}, ingress: [{toPorts: [{}]}]", "spec.ingress[0].toPorts[0].ports", invalid, "", "", "in web>db 80/TCP"},
		"an empty list":         {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: []}]", "spec.ingress[0].toPorts", invalid, "all or none", "", "in web>db 80/TCP"},
		"a bad port":            {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"65536\"}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "neither a number", "", "in web>db 80/TCP"},
		"a port as a number":    {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: 80}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "cannot unmarshal", "", "in web>db 80/TCP"},
		"a bad range":           {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\", endPort: 79}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "endPort 79", "", "in web>db 80/TCP"},
		"a range of a name":     {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: web, endPort: 79}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "endPort", "", "in db>web 8080/TCP"},
		"a bad protocol":        {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\", protocol: IPX}]}]}]", "spec.ingress[0].toPorts[0].ports[0]", invalid, "protocol", "", "in web>db 80/TCP"},
		"a bad type":            {"endpointSelector: {}, ingress: [{icmps: [{fields: [{type: 256}]}]}]", "spec.ingress[0].icmps[0].fields[0]", invalid, "neither a number", "", "in web>db 8/ICMP"},
		"a bad CIDR":            {"endpointSelector: {}, ingress: [{fromCIDR: [10.0.0.0/33]}]", "spec.ingress[0].fromCIDR[0]", invalid, "neither a CIDR", "", "in world>db 80/TCP"},
		"a bad except":          {"endpointSelector: {}, ingress: [{fromCIDRSet: [{cidr: 203.0.113.0/24, except: [10.0.0.0/8]}]}]", "spec.ingress[0].fromCIDRSet[0].except[0]", invalid, "does not lie in", "", "in world>db 80/TCP"},
		"a bad entity":          {"endpointSelector: {}, ingress: [{fromEntities: [moon]}]", "spec.ingress[0].fromEntities[0]", invalid, `"moon" is not known`, "", "in world>db 80/TCP"},
		"a bad operator":        {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchExpressions: [{key: app, operator: Like}]}]}]", "spec.ingress[0].fromEndpoints[0]", invalid, "does not exist", "", "in web>db 80/TCP"},
		"In without values":     {"endpointSelector: {}, ingress: [{fromEndpoints: [{matchExpressions: [{key: app, operator: NotIn}]}]}]", "spec.ingress[0].fromEndpoints[0]", invalid, "needs values", "", "in web>db 80/TCP"},
		"a bad section":         {"endpointSelector: {}, ingress: {fromEntities: [all]}", "spec.ingress", invalid, "cannot be read", "out web>db 80/TCP", "in web>db 80/TCP"},
		"no subject":            {"ingress: [{fromEntities: [all]}]", "spec", invalid, "endpointSelector is missing", "in web>green 80/TCP", "in web>db 80/TCP"},
		"a bad subject":         {"endpointSelector: {matchExpressions: [{key: app, operator: In}]}, ingress: [{fromEntities: [all]}]", "spec.endpointSelector", invalid, "its rules allow nothing", "in web>green 80/TCP", "in web>db 80/TCP"},
		"a null subject":        {"endpointSelector: null, ingress: [{fromEntities: [all]}]", "spec.endpointSelector", invalid, "null", "", "in web>db 80/TCP"},
		"two subjects":          {"endpointSelector: {}, nodeSelector: {}, ingress: [{fromEntities: [all]}]", "spec", invalid, "both", "", "in web>db 80/TCP"},
		"nodes as subjects":     {"nodeSelector: {}, ingress: [{fromEntities: [none]}]", "spec.nodeSelector", invalid, "cannot be for nodes", "in web>db 80/TCP", ""},
		"another namespace":     {"endpointSelector: {matchLabels: {\"k8s:io.kubernetes.pod.namespace\": green, app: db}}, ingress: [{}]", "spec.endpointSelector", invalid, "it is enforced in its own", "in web>green 80/TCP", "in web>db 80/TCP"},
		"some of a namespace":   {"endpointSelector: {matchLabels: {io.kubernetes.pod.namespace: green, app: db}}, ingress: [{}]", "spec.endpointSelector", invalid, "it is enforced in its own", "in db>web 80/TCP", ""},
		"other namespaces":      {"endpointSelector: {matchExpressions: [{key: io.kubernetes.pod.namespace, operator: NotIn, values: [red]}]}, ingress: [{}]", "spec.endpointSelector", invalid, "selects no endpoint", "in web>db 80/TCP", ""},
		"proxies of Ingresses":  {"endpointSelector: {}, ingress: [{fromEntities: [host, ingress]}]", "spec.ingress[0].fromEntities[1]", unsupported, "matches no peer", "in host>db 80/TCP", "in web>db 80/TCP"},
		"pods of other sources": {"endpointSelector: {}, ingressDeny: [{fromEntities: [unmanaged, host]}]" + all, "spec.ingressDeny[0].fromEntities[0]", unsupported, "matches no peer", "in web>db 80/TCP", "in host>db 80/TCP"},
		"new pods":              {"endpointSelector: {}, ingress: [{fromEntities: [init]}]", "", "", "", "in init>db 80/TCP", "in web>db 80/TCP"},
		"no requests":           {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: \"80\"}], rules: {http: [], kafka: [], dns: [], l7: []}}]}]", "", "", "", "in web>db 80/TCP", "in web>db 81/TCP"},
		"unknown requests":      {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: \"80\"}], rules: {grpc: []}}]}]", "spec.ingress[0].toPorts[0].rules", unsupported, "allows nothing", "", "in web>db 80/TCP"},
		"a parser of requests":  {"endpointSelector: {}, ingress: [{fromEndpoints: [{}], toPorts: [{ports: [{port: \"80\"}], rules: {l7proto: x, l7: []}}]}]", "spec.ingress[0].toPorts[0].rules", unsupported, "allows nothing", "", "in web>db 80/TCP"},
		"a reserved subject":    {"endpointSelector: {matchLabels: {\"reserved:init\": \"\"}}, ingress: [{}]", "spec.endpointSelector", unsupported, "selects no endpoint", "in web>db 80/TCP", ""},
		"no reserved subject":   {"endpointSelector: {matchExpressions: [{key: \"reserved:init\", operator: DoesNotExist}]}, ingress: [{}]", "", "", "", "", "in web>db 80/TCP"},
		"invalid default deny":  {"endpointSelector: {}, enableDefaultDeny: {ingress: maybe}", "spec.enableDefaultDeny", invalid, "both directions are isolated", "", "in web>db 80/TCP"},

		"a deny of requests":                 {"endpointSelector: {}, ingressDeny: [{toPorts: [{ports: [{port: \"80\"}], rules: {http: [{}]}}]}]" + all, "spec.ingressDeny[0].toPorts[0].rules", unsupported, "denies all that it may mean", "in web>db 81/TCP", "in web>db 80/TCP"},
		"a deny of names":                    {"endpointSelector: {}, egressDeny: [{toFQDNs: [{matchName: a.example}], toPorts: [{ports: [{port: \"80\"}]}]}]" + all, "spec.egressDeny[0].toFQDNs", unsupported, "denies all", "out web>world 81/TCP", "out web>world 80/TCP"},
		"a deny of names, no default deny":   {"endpointSelector: {}, enableDefaultDeny: {egress: false}, egressDeny: [" + toName + "]", "spec.egressDeny[0].toFQDNs", unsupported, "denies all", "out web>world 81/TCP", "out web>db 80/TCP"},
		"a deny with a bad requirement":      {"endpointSelector: {}, ingressDeny: [{fromEndpoints: [{}], fromRequires: [{matchExpressions: [{key: app, operator: Like}]}]}]" + all, "spec.ingressDeny[0].fromRequires[0]", invalid, "denies all", "in green>db 80/TCP", "in db>web 80/TCP"},
		"a deny of a requirement with ports": {"endpointSelector: {}, ingressDeny: [{fromRequires: [{matchLabels: {app: web}}], toPorts: [{ports: [{port: \"80\"}]}]}]" + all, "spec.ingressDeny[0].fromRequires", invalid, "denies all", "in world>web 81/TCP", "in world>web 80/TCP"},
		"a deny of a bad CIDR":               {"endpointSelector: {}, ingressDeny: [{fromCIDR: [x]}]" + all, "spec.ingressDeny[0].fromCIDR[0]", invalid, "denies all", "", "in web>db 80/TCP"},
		"a deny of a bad port":               {"endpointSelector: {}, ingressDeny: [{fromEntities: [world], toPorts: [{ports: [{port: x y}]}]}]" + all, "spec.ingressDeny[0].toPorts[0].ports[0]", invalid, "denies all", "in web>db 80/TCP", "in world>db 80/TCP"},
		"a deny, badly excepted":             {"endpointSelector: {}, ingressDeny: [{fromCIDRSet: [{cidr: 0.0.0.0/0, except: [x]}, {cidr: \"::/0\"}]}]" + all, "spec.ingressDeny[0].fromCIDRSet[0].except[0]", invalid, "denies all", "in web>db 80/TCP", "in world>db 80/TCP"},
		"a null deny":                        {"endpointSelector: {}, ingressDeny: [null]" + all, "spec.ingressDeny[0]", invalid, "null", "out web>db 80/TCP", "in web>db 80/TCP"},
		"denies without content":             {"endpointSelector: {}, ingressDeny: {}" + all, "spec.ingressDeny", invalid, "denies all", "out web>db 80/TCP", "in web>db 80/TCP"},
		"a deny beside unknown":              {"endpointSelector: {}, ingressDeny: [{fromEntities: [world]}], during: night" + all, "spec.during", unsupported, "allows anything", "", "in world>db 80/TCP"},
		"an unknown deny":                    {"endpointSelector: {}, ingressDeny: [{fromMoon: [{}], toPorts: [{ports: [{port: \"80\"}]}]}]" + all, "spec.ingressDeny[0].fromMoon", unsupported, "denies all", "out web>db 80/TCP", "in web>db 81/TCP"},
	} {
		policies := read(t, policy.Environment{}, cnp(c.spec))
		checkProblem(t, name, policies[0], c.path, c.reason, c.message)
		checkVerdict(t, name, policies, c.allow, policy.Allow)
		checkVerdict(t, name, policies, c.deny, policy.Deny)
	}
}

// TestFromCilium_Clusterwide checks cases that only clusterwide policies have.
func TestFromCilium_Clusterwide(t *testing.T) {
	t.Parallel()
	policies := read(t, policy.Environment{}, ccnp("nodeSelector: {}, ingress: [{fromEntities: [host]}]"))
	checkProblem(t, "nodes", policies[0], "spec.nodeSelector", policy.ReasonUnsupported, "does nothing")
	checkVerdict(t, "nodes", policies, "in world>db 80/TCP", policy.Allow)
	// One typing mistake must not isolate every pod of the cluster.
	for name, spec := range map[string]string{"no subject": "ingress: [{fromEntities: [none]}]",
		"a bad subject":  "endpointSelector: {matchExpressions: [{key: app, operator: In}]}, ingress: [{fromEntities: [none]}]",
		"a null subject": "endpointSelector: null, egressDeny: [{toEntities: [all]}]"} {
		policies = read(t, policy.Environment{}, ccnp(spec))
		if problems := policies[0].Problems; len(problems) != 1 || !problems[0].Invalid || !strings.Contains(problems[0].Message, "selects no endpoint") {
			t.Errorf("%s: %+v", name, problems)
		}
		checkVerdict(t, name, policies, "in web>green 80/TCP", policy.Allow)
		checkVerdict(t, name, policies, "out web>db 80/TCP", policy.Allow)
	}
	// In Cilium this policy is for pods whose labels are not yet known. Here no endpoint has a reserved label.
	policies = read(t, policy.Environment{}, ccnp("endpointSelector: {matchLabels: {\"reserved:init\": \"\"}}, egress: [{toEntities: [world]}]"))
	checkProblem(t, "a reserved subject", policies[0], "spec.endpointSelector", policy.ReasonUnsupported, "selects no endpoint")
	checkVerdict(t, "a reserved subject", policies, "out web>db 80/TCP", policy.Allow)
	unlabelled := ask(t, "out init>db 80/TCP", 0)
	unlabelled.Subject.Labels = nil // labels of an identity are not labels of the endpoint
	if got := policy.Evaluate(policies, policy.Options{}, unlabelled); got.Verdict != policy.Allow {
		t.Errorf("an endpoint without labels: %+v", got)
	}
	policies = read(t, policy.Environment{}, strings.Replace(ccnp(""), "spec: {}", "specs: []", 1))
	checkProblem(t, "nothing", policies[0], "spec", policy.ReasonInvalid, "the policy does nothing")
	policies = read(t, policy.Environment{}, strings.Replace(ccnp(""), "spec: {}", "specs: {}", 1))
	checkProblem(t, "unreadable", policies[0], "specs", policy.ReasonInvalid, "selects no endpoint")
	checkVerdict(t, "unreadable", policies, "in web>green 80/TCP", policy.Allow)
}

// TestFromCilium_WorldLabels: a label of the world that no peer has with the enabled families is reported, since a deny of it denies nothing.
func TestFromCilium_WorldLabels(t *testing.T) {
	t.Parallel()
	both, one, unknown := policy.Environment{}, policy.Environment{IPv6Only: true}, policy.Environment{FamiliesUnknown: true}
	for name, c := range map[string]struct {
		env           policy.Environment
		label, remedy string // no remedy: no problem is reported
	}{
		"both families":                      {both, worldLabel, "use the entity world"},
		"both families, an expression":       {both, "{matchExpressions: [{key: \"reserved:world\", operator: Exists}]}", "use the entity world"},
		"both families, an exclusion":        {both, "{matchExpressions: [{key: \"reserved:world\", operator: DoesNotExist}]}", ""},
		"both families, a label of one":      {both, "{matchLabels: {\"reserved:world-ipv4\": \"\"}}", ""},
		"one family":                         {one, worldLabel, ""},
		"one family, a label of one":         {one, "{matchLabels: {\"reserved:world-ipv6\": \"\"}}", "use the entity world-ipv6"},
		"families unknown":                   {unknown, worldLabel, ""},
		"families unknown, a label of one":   {unknown, "{matchLabels: {\"reserved:world-ipv6\": \"\"}}", ""},
		"both families, beside other labels": {both, "{matchLabels: {\"reserved:world\": \"\", app: web}}", "use the entity world"},
	} {
		policies := read(t, c.env, cnp("endpointSelector: {}, ingressDeny: [{fromEndpoints: ["+c.label+"]}], ingress: [{fromEntities: [all]}]"))
		if c.remedy == "" {
			if len(policies[0].Problems) > 0 {
				t.Errorf("%s: %+v", name, policies[0].Problems)
			}
			continue
		}
		checkProblem(t, name, policies[0], "spec.ingressDeny[0].fromEndpoints[0]", policy.ReasonUnsupported, c.remedy)
		checkVerdict(t, name, policies, "in web>db 80/TCP", policy.Allow)
	}
}

// TestFromCilium_DNSBesideNames: rules about DNS beside toFQDNs, which Cilium's manual combines, isolate the pods from their DNS servers and from the named
// peers, and say so. With --l7-rules=allow-port the pods resolve names, and the names are still no peers.
func TestFromCilium_DNSBesideNames(t *testing.T) {
	t.Parallel()
	text := cnp("endpointSelector: {}, egress: [{toEndpoints: [{matchLabels: {\"k8s:io.kubernetes.pod.namespace\": green, app: web}}], " +
		"toPorts: [{ports: [{port: \"53\", protocol: ANY}], rules: {dns: [{matchPattern: \"*\"}]}}]}, {toFQDNs: [{matchName: a.example}]}]")
	for _, c := range []struct {
		allowPort bool
		message   string // of the problem of the rule about DNS
		dns       policy.Verdict
	}{{false, "--l7-rules=allow-port", policy.Deny}, {true, "the rule allows all connections on the port", policy.Allow}} {
		name := fmt.Sprint("allow-port: ", c.allowPort)
		policies := read(t, policy.Environment{AllowL7Ports: c.allowPort}, text)
		if len(policies[0].Problems) != 2 {
			t.Errorf("%s: %+v", name, policies[0].Problems)
		}
		checkProblem(t, name, policies[0], "spec.egress[0].toPorts[0].rules", policy.ReasonUnsupported, c.message)
		checkProblem(t, name, policies[0], "spec.egress[1].toFQDNs", policy.ReasonUnsupported, "use CIDRs")
		checkVerdict(t, name, policies, "out db>green 53/UDP", c.dns)
		checkVerdict(t, name, policies, "out db>green 53/TCP", c.dns)
		for _, question := range []string{"out db>green 80/TCP", "out db>web 53/UDP", "out db>world 53/UDP", "out db>world 443/TCP"} {
			checkVerdict(t, name, policies, question, policy.Deny)
		}
	}
}

// TestFromCilium_LabelsNotInIdentities: a peer cannot be checked for a label that is not part of identities.
func TestFromCilium_LabelsNotInIdentities(t *testing.T) {
	t.Parallel()
	env := policy.Environment{Keeps: func(label string) bool { return label != "k8s:tier" }}
	for name, c := range map[string]struct{ spec, allow, deny string }{
		"In":                   {"ingress: [{fromEndpoints: [{matchLabels: {tier: back}}, {matchLabels: {app: web}}]}]", "in web>db 80/TCP", "in green>db 80/TCP"},
		"DoesNotExist":         {"ingress: [{fromEndpoints: [{matchExpressions: [{key: tier, operator: DoesNotExist}]}]}]", "", "in web>db 80/TCP"},
		"NotIn":                {"ingress: [{fromEndpoints: [{matchExpressions: [{key: \"k8s:tier\", operator: NotIn, values: [x]}]}]}]", "", "in web>db 80/TCP"},
		"a requirement":        {"ingress: [{fromRequires: [{matchLabels: {tier: back}}]}, {fromEndpoints: [{}]}, {fromEntities: [world]}]", "in world>db 80/TCP", "in web>db 80/TCP"},
		"a deny's requirement": {"ingress: [{fromEntities: [all]}], ingressDeny: [{fromEndpoints: [{}], fromRequires: [{matchLabels: {tier: back}}]}]", "in green>db 80/TCP", "in web>db 80/TCP"},
		"a deny of In":         {"ingress: [{fromEntities: [all]}], ingressDeny: [{fromEndpoints: [{matchLabels: {app: web, tier: back}}]}]", "in db>web 80/TCP", "in web>db 80/TCP"},
		"a deny of an absence": {"ingress: [{fromEntities: [all]}], ingressDeny: [{fromEndpoints: [{matchExpressions: [{key: tier, operator: DoesNotExist}]}]}]", "in green>db 80/TCP", "in web>db 80/TCP"},
	} {
		policies := read(t, env, cnp("endpointSelector: {}, "+c.spec))
		if len(policies[0].Problems) != 1 || policies[0].Problems[0].Reason != policy.ReasonLabel {
			t.Errorf("%s: %+v", name, policies[0].Problems)
		}
		checkVerdict(t, name, policies, c.allow, policy.Allow)
		checkVerdict(t, name, policies, c.deny, policy.Deny)
	}
}

// TestEnvironment: the environment determines the peers of entities.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	policies := read(t, policy.Environment{APIServerHere: true}, cnp("endpointSelector: {}, egress: [{toEntities: [kube-apiserver]}]"))
	checkVerdict(t, "an API server here", policies, "out web>host 80/TCP", policy.Allow)
	checkVerdict(t, "an API server here", policies, "out web>node 80/TCP", policy.Deny)
	for _, peers := range []string{"fromEntities: [kube-apiserver]", "fromEntities: [cluster]", "fromEndpoints: [{matchLabels: {\"reserved:kube-apiserver\": \"\"}}]",
		"fromEndpoints: [{matchExpressions: [{key: \"reserved:kube-apiserver\", operator: Exists}]}]"} {
		outside := policy.Environment{APIServers: []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}}
		policies := read(t, outside, cnp("endpointSelector: {}, ingress: [{"+peers+"}]"))
		for _, who := range []string{"world", "api"} {
			checkVerdict(t, peers, policies, "in "+who+">db 80/TCP", policy.Allow)
		}
		checkVerdict(t, peers, policies, "in world2>db 80/TCP", policy.Deny)
		policies = read(t, outside, cnp("endpointSelector: {}, enableDefaultDeny: {ingress: false}, ingressDeny: [{"+peers+"}]"))
		checkVerdict(t, "deny "+peers, policies, "in world>db 80/TCP", policy.Deny)
		checkVerdict(t, "deny "+peers, policies, "in world2>db 80/TCP", policy.Allow)
	}
	for entity, env := range map[string]policy.Environment{"world-ipv4": {IPv4Only: true}, "world-ipv6": {IPv6Only: true}} {
		policies := read(t, env, cnp("endpointSelector: {}, egress: [{toEntities: ["+entity+"]}]"))
		q := ask(t, "out web>world 80/TCP", 0)
		q.Peer.Identity = 2
		if got := policy.Evaluate(policies, policy.Options{}, q); got.Verdict != policy.Allow {
			t.Errorf("%s of the only family: %+v", entity, got)
		}
	}
	// With one family enabled, the world has the identity 2, and its label is the one that policies name.
	for _, peers := range []string{"toEntities: [world]", "toEndpoints: [" + worldLabel + "]"} {
		policies := read(t, policy.Environment{IPv4Only: true}, cnp("endpointSelector: {}, egress: [{"+peers+"}]"))
		q := ask(t, "out web>world 80/TCP", 0)
		q.Peer.Identity, q.Peer.Labels = identity.World, identity.Labels(identity.World)
		if got := policy.Evaluate(policies, policy.Options{}, q); got.Verdict != policy.Allow {
			t.Errorf("%s of the only family: %+v", peers, got)
		}
		checkVerdict(t, peers, policies, "out web>db 80/TCP", policy.Deny)
		checkVerdict(t, peers, policies, "out web>host 80/TCP", policy.Deny)
	}
}

// TestFromCilium_PortsOfL7Rules: with --l7-rules=allow-port, rules about requests allow their ports and report a problem. Deny rules are not narrowed.
func TestFromCilium_PortsOfL7Rules(t *testing.T) {
	t.Parallel()
	env := policy.Environment{AllowL7Ports: true}
	policies := read(t, env, cnp("endpointSelector: {}, egress: [{toEndpoints: [{}], toPorts: [{ports: [{port: \"53\", protocol: UDP}], rules: {dns: [{matchPattern: \"*\"}]}}]}]"))
	checkProblem(t, "DNS", policies[0], "spec.egress[0].toPorts[0].rules", policy.ReasonUnsupported, "the rule allows all connections on the port")
	checkVerdict(t, "DNS", policies, "out web>db 53/UDP", policy.Allow)
	checkVerdict(t, "DNS", policies, "out web>db 80/TCP", policy.Deny)
	for name, c := range map[string]struct{ spec, path, verdict string }{
		"a deny":           {"endpointSelector: {}, ingress: [{fromEntities: [all]}], ingressDeny: [{toPorts: [{ports: [{port: \"80\"}], rules: {http: [{}]}}]}]", "spec.ingressDeny[0].toPorts[0].rules", "in web>db 80/TCP"},
		"no rules":         {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\"}], rules: 5}]}]", "spec.ingress[0].toPorts[0].rules", "in web>db 80/TCP"},
		"names of servers": {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\"}], serverNames: [a.example]}]}]", "spec.ingress[0].toPorts[0].serverNames", "in web>db 80/TCP"},
		"a listener":       {"endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: \"80\"}], listener: {name: x}, rules: {http: [{}]}}]}]", "spec.ingress[0].toPorts[0].listener", "in web>db 80/TCP"},
	} {
		policies := read(t, env, cnp(c.spec))
		if !slices.ContainsFunc(policies[0].Problems, func(p policy.Problem) bool { return p.Path == c.path && p.Reason == policy.ReasonUnsupported }) {
			t.Errorf("%s: %+v", name, policies[0].Problems)
		}
		checkVerdict(t, name, policies, c.verdict, policy.Deny)
	}
}
