package policy_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// party is a subject or a peer in tables of cases, with one address of each family. The pod web has the named ports web (8080/TCP) and dns (53/UDP); the
// pod db has the named port web (9090/TCP).
type party struct {
	id     uint32
	labels map[string]string
	addrs  [2]string
	ports  []policy.NamedPort
}

var (
	red   = &k8s.Namespace{Name: "red", Labels: map[string]string{"team": "a"}}
	green = &k8s.Namespace{Name: "green", Labels: map[string]string{"team": "b", "env": "prod"}}
)

func pod(id uint32, namespace *k8s.Namespace, own map[string]string, v4, v6 string, ports ...policy.NamedPort) party {
	return party{id, labels.OfPod("test", &k8s.Pod{Namespace: namespace.Name, Name: "p", Labels: own}, namespace), [2]string{v4, v6}, ports}
}

func fixed(id uint32, v4, v6 string) party {
	return party{id, identity.Labels(id), [2]string{v4, v6}, nil}
}

func parties() map[string]party {
	port := func(name string, protocol uint8, number uint16) policy.NamedPort {
		return policy.NamedPort{Name: name, Protocol: protocol, Number: number}
	}
	return map[string]party{
		"web":   pod(300, red, map[string]string{"app": "web"}, "10.0.0.11", "fd00::11", port("web", policy.ProtocolTCP, 8080), port("dns", policy.ProtocolUDP, 53)),
		"db":    pod(301, red, map[string]string{"app": "db", "tier": "back"}, "10.0.0.12", "fd00::12", port("web", policy.ProtocolTCP, 9090)),
		"green": pod(302, green, map[string]string{"app": "web"}, "10.0.1.13", "fd00::1:13"),
		// The pod imitates the host, another namespace and another application with labels of its own.
		"liar": pod(303, green, map[string]string{"reserved:host": "", "io.kubernetes.pod.namespace": "red", "io.cilium.k8s.namespace.labels.team": "a",
			"app": "liar", "k8s:app": "db"}, "10.0.1.14", "fd00::1:14"),
		"host": fixed(identity.Host, "192.168.0.1", "fd01::1"), "node": fixed(identity.RemoteNode, "192.168.0.2", "fd01::2"),
		"api": fixed(identity.KubeAPIServer, "192.168.0.3", "fd01::3"), "health": fixed(identity.Health, "10.0.0.2", "fd00::2"),
		"init":    fixed(identity.Init, "10.0.0.3", "fd00::3"),
		"world":   fixed(identity.WorldIPv4, "203.0.113.1", "2001:db8::1"), // its IPv6 address has another identity: see ask
		"world2":  fixed(identity.WorldIPv4, "203.0.113.129", "2001:db8:0:1::1"),
		"unknown": fixed(identity.Unknown, "198.51.100.1", "2001:db8:f::1"),
	}
}

// ask parses a lookup: "in web>db 80/TCP" is the ingress of db, "out web>db 80/TCP" the egress of web.
func ask(t *testing.T, text string, family int) policy.Question {
	t.Helper()
	words := strings.Fields(text)
	from, to, _ := strings.Cut(words[1], ">")
	q := policy.Question{Direction: policy.Ingress}
	subject, peer := to, from
	if words[0] == "out" {
		q.Direction, subject, peer = policy.Egress, from, to
	}
	is := func(name string) policy.Party {
		p, found := parties()[name]
		if !found {
			t.Fatalf("%s: there is no party %q", text, name)
		}
		if p.id == identity.WorldIPv4 && family == 1 {
			p.id = identity.WorldIPv6
			p.labels = identity.Labels(p.id)
		}
		return policy.Party{Identity: p.id, Labels: p.labels, Addr: netip.MustParseAddr(p.addrs[family]), Ports: p.ports}
	}
	q.Subject, q.Peer = is(subject), is(peer)
	port, protocol, _ := strings.Cut(words[2], "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	q.Port = uint16(number)
	q.Protocol = map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 1, "ICMPv6": 58, "GRE": 47}[protocol]
	if protocol == "echo" { // ICMP of the family
		q.Protocol, q.Port = policy.ProtocolICMP, 8
		if family == 1 {
			q.Protocol, q.Port = policy.ProtocolICMPv6, 128
		}
	}
	return q
}

// read parses policies from YAML.
func read(t *testing.T, env policy.Environment, text string) []*policy.Policy {
	t.Helper()
	policies, _, err := manifests.Policies([]byte(text), env)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return policies
}

// Policies with a spec: two in the namespace red, and one clusterwide.
func netpol(spec string) string { return object("networking.k8s.io/v1", "NetworkPolicy", "red", spec) }
func cnp(spec string) string    { return object("cilium.io/v2", "CiliumNetworkPolicy", "red", spec) }
func ccnp(spec string) string {
	return object("cilium.io/v2", "CiliumClusterwideNetworkPolicy", "", spec)
}

func object(version, kind, namespace, spec string) string {
	if namespace != "" {
		namespace = ", namespace: " + namespace
	}
	return "---\n{apiVersion: " + version + ", kind: " + kind + ", metadata: {name: p" + strconv.Itoa(len(spec)) + namespace + "}, spec: {" + spec + "}}\n"
}

// semantics is a test case: verdicts of connections with some policies, in both families.
type semantics struct {
	name, policies string
	allow, deny    []string
	options        policy.Options
	only           int // one family: 4 or 6; 0 for both
}

func (c *semantics) check(t *testing.T, env policy.Environment) {
	t.Helper()
	policies := read(t, env, c.policies)
	for family, number := range []int{4, 6} {
		if c.only != 0 && c.only != number {
			continue
		}
		for want, questions := range map[policy.Verdict][]string{policy.Allow: c.allow, policy.Deny: c.deny} {
			for _, text := range questions {
				if got := policy.Evaluate(policies, c.options, ask(t, text, family)); got.Verdict != want {
					t.Errorf("%s, IPv%d: %s: %+v, want %s", c.name, number, text, got, want)
				}
			}
		}
	}
}
