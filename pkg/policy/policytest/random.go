package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// random generates parts of worlds from few values, so that policies often match pods.
type random struct{ *rand.Rand }

var (
	namespaces  = []string{"red", "green"}
	groupNames  = []string{"vpn", "office", "missing"}
	groupLabels = [][]string{{"role", "vpn", "office"}, {"site", "a", "b"}}
	nsLabels    = [][]string{{"team", "a", "b"}, {"env", "prod", "dev"}}
	podLabels   = [][]string{{"app", "web", "db", "dns"}, {"tier", "front", "back"}, {HiddenKey, "x", "y"}}
	portNames   = []string{"web", "admin"}
	portNumbers = []uint16{53, 80, 443, 8080}
	protocolsOf = []string{"TCP", "TCP", "UDP", "SCTP"}

	protocolNumbers = map[string]uint8{"TCP": policy.ProtocolTCP, "UDP": policy.ProtocolUDP, "SCTP": policy.ProtocolSCTP}

	// blocks overlap with each other and with the addresses of all peers.
	blocks = []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/28", "10.0.1.0/24", "10.0.0.200/32", "192.168.0.0/16",
		"192.168.0.0/30", "203.0.113.0/24", "203.0.113.128/25", "203.0.113.1/32", "::/0", "fd00::/16", "fd00::/112", "fd01::/64", "2001:db8::/32"}
)

func (r *random) oneIn(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *random, from ...T) T { return from[r.IntN(len(from))] }

// some returns up to most parts. Each part is included with probability 1/2.
func some[T any](r *random, most int, one func() T) []T {
	var list []T
	for range most {
		if r.oneIn(2) {
			list = append(list, one())
		}
	}
	return list
}

// labels assigns values to some of the keys; each item of from is a key followed by its values.
func (r *random) labels(from [][]string, most int) map[string]string {
	out := map[string]string{}
	for range most {
		key := from[r.IntN(len(from))]
		out[key[0]] = pick(r, key[1:]...)
	}
	return out
}

// selector generates a selector with few requirements, so that it often matches.
func (r *random) selector(from [][]string) k8s.Selector {
	var s k8s.Selector
	if r.oneIn(4) {
		s.MatchLabels = r.labels(from, 1)
	}
	if !r.oneIn(3) {
		return s
	}
	s.Expressions = some(r, 1, func() k8s.Expression {
		key := from[r.IntN(len(from))]
		e := k8s.Expression{Key: key[0], Operator: pick(r, "In", "NotIn", "Exists", "DoesNotExist")}
		if e.Operator == "In" || e.Operator == "NotIn" {
			e.Values = []string{pick(r, key[1:]...), pick(r, key[1:]...)}
		}
		return e
	})
	return s
}

// kubernetes generates a NetworkPolicy.
func (r *random) kubernetes(i int) *k8s.NetworkPolicy {
	p := &k8s.NetworkPolicy{Namespace: pick(r, namespaces...), Name: fmt.Sprintf("kubernetes-%d", i), PodSelector: r.selector(podLabels),
		IsIngress: r.oneIn(2), IsEgress: r.oneIn(2), Annotations: r.annotations()}
	if p.IsIngress || r.oneIn(8) {
		p.Ingress = some(r, 3, r.kubernetesRule)
	}
	if p.IsEgress || r.oneIn(8) {
		p.Egress = some(r, 3, r.kubernetesRule)
	}
	if r.oneIn(40) {
		p.Invalid = "something is wrong"
	}
	return p
}

func (r *random) annotations() map[string]string {
	if r.oneIn(6) {
		return map[string]string{policy.ModeAnnotation: pick(r, policy.ModeAudit, policy.ModeAudit, "other")}
	}
	return nil
}

func (r *random) kubernetesRule() k8s.PolicyRule {
	if r.oneIn(20) {
		return k8s.PolicyRule{Invalid: "something is wrong"}
	}
	return k8s.PolicyRule{Peers: some(r, 2, r.kubernetesPeer), Ports: some(r, 2, r.kubernetesPort)}
}

func (r *random) kubernetesPeer() k8s.Peer {
	if r.oneIn(3) {
		block := netip.MustParsePrefix(pick(r, blocks...))
		return k8s.Peer{IPBlock: block, Except: r.excepts(block)}
	}
	var p k8s.Peer
	if pods := r.selector(podLabels); r.oneIn(2) {
		p.Pods = &pods
	}
	if spaces := r.selector(nsLabels); p.Pods == nil || r.oneIn(2) {
		p.Namespaces = &spaces
	}
	return p
}

// excepts returns blocks inside another block.
func (r *random) excepts(block netip.Prefix) (list []netip.Prefix) {
	for _, text := range blocks {
		inner := netip.MustParsePrefix(text)
		if inner.Bits() > block.Bits() && block.Contains(inner.Addr()) && r.oneIn(4) {
			list = append(list, inner)
		}
	}
	return list
}

func (r *random) kubernetesPort() k8s.PolicyPort {
	p := k8s.PolicyPort{Protocol: pick(r, protocolsOf...)}
	switch r.IntN(4) {
	case 0:
		p.Port = pick(r, portNames...)
	case 1:
	default:
		number := pick(r, portNumbers...)
		p.Port = fmt.Sprint(number)
		if r.oneIn(3) {
			p.EndPort = pick(r, number, number+1, 8080, 65535)
			if p.EndPort < number {
				p.EndPort = 0
			}
		}
	}
	return p
}
