package policy_test

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// naive is a second evaluator. It does not use the parsed model: for each lookup it reads the objects as written. A result is yes, no or untold.
type naive struct {
	w     *policytest.World
	q     policy.Question
	audit bool // include policies in audit mode
	meant bool // evaluate what an allow item may mean; untold is then only a part that cannot be read
}

type ternary int

const (
	no ternary = iota
	yes
	untold // depends on a condition that cannot be checked
)

func of(b bool) ternary {
	if b {
		return yes
	}
	return no
}

// either is a logical or, both a logical and. If an operand is untold, so is the result, even if the other operand would decide.
func either(answers ...ternary) ternary { return slices.Max(append(answers, no)) }

func both(a, b ternary) ternary {
	if a == untold || b == untold {
		return untold
	}
	return min(a, b)
}

func (n naive) allowed() bool {
	isolated, allow, deny := n.w.Options.Mode == policy.Always, false, false
	switch {
	case n.w.Options.Mode == policy.Never:
		return true
	case n.w.Options.AllowLocalhost && n.q.Direction == policy.Ingress && n.q.Peer.Identity == 1:
		return true
	}
	for _, p := range n.w.Kubernetes {
		if n.counts(p.Annotations) && n.namespace() == p.Namespace && n.kubernetesSelects(&p.PodSelector, n.q.Subject.Labels, "") {
			rules, on := p.Ingress, p.IsIngress
			if n.q.Direction == policy.Egress {
				rules, on = p.Egress, p.IsEgress
			}
			isolated = isolated || on
			demanded := n.meets(p.Namespace, false)
			allow = allow || on && p.Invalid == "" && slices.ContainsFunc(rules, func(r k8s.PolicyRule) bool { return n.kubernetesRule(p, r, demanded) })
		}
	}
	for _, p := range n.w.Cilium {
		if !n.counts(p.Annotations) {
			continue
		}
		for _, spec := range specs(p) {
			i, a, d := n.spec(p, spec)
			isolated, allow, deny = isolated || i, allow || a, deny || d
		}
	}
	return !deny && (allow || !isolated)
}

func (n naive) counts(annotations map[string]string) bool {
	return n.audit || annotations["policy.waggle.io/mode"] != "audit"
}

func (n naive) namespace() string { return n.q.Subject.Labels["k8s:io.kubernetes.pod.namespace"] }

// kubernetesSelects evaluates a selector for labels of the source k8s with a prefix.
func (n naive) kubernetesSelects(s *k8s.Selector, labels map[string]string, prefix string) bool {
	for key, value := range s.MatchLabels {
		if got, found := labels["k8s:"+prefix+key]; !found || got != value {
			return false
		}
	}
	for _, e := range s.Expressions {
		got, found := labels["k8s:"+prefix+e.Key]
		listed := found && slices.Contains(e.Values, got)
		if ok := map[string]bool{"In": listed, "NotIn": !listed, "Exists": found, "DoesNotExist": !found}[e.Operator]; !ok {
			return false
		}
	}
	return true
}

func (n naive) kubernetesRule(p *k8s.NetworkPolicy, r k8s.PolicyRule, demanded bool) bool {
	if r.Invalid != "" {
		return false
	}
	for _, peer := range r.Peers { // the absence of a hidden label cannot be checked
		if peer.Pods != nil && slices.ContainsFunc(peer.Pods.Expressions, func(e k8s.Expression) bool {
			return e.Key == policytest.HiddenKey && (e.Operator == "NotIn" || e.Operator == "DoesNotExist")
		}) {
			return false
		}
	}
	who := n.q.Peer
	peers := len(r.Peers) == 0 || slices.ContainsFunc(r.Peers, func(o k8s.Peer) bool {
		if o.IPBlock.IsValid() {
			return inBlock(who.Addr, o.IPBlock, o.Except)
		}
		namespace, isPod := who.Labels["k8s:io.kubernetes.pod.namespace"]
		switch {
		case !isPod || !demanded:
			return false
		case o.Namespaces == nil && namespace != p.Namespace:
			return false
		case o.Namespaces != nil && !n.kubernetesSelects(o.Namespaces, who.Labels, "io.cilium.k8s.namespace.labels."):
			return false
		}
		return o.Pods == nil || n.kubernetesSelects(o.Pods, who.Labels, "")
	})
	return peers && (len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(o k8s.PolicyPort) bool {
		if number(o.Protocol) != n.q.Protocol {
			return false
		}
		if o.Port == "" {
			return true
		}
		from, err := strconv.Atoi(o.Port)
		if err != nil {
			return n.serves(o.Port)
		}
		return int(n.q.Port) == from || int(n.q.Port) > from && n.q.Port <= o.EndPort
	}))
}

func inBlock(addr netip.Addr, block netip.Prefix, excepts []netip.Prefix) bool {
	for _, except := range excepts {
		if except.Contains(addr) {
			return false
		}
	}
	return block.Contains(addr)
}

func number(protocol string) uint8 {
	return map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}[protocol]
}

// serves reports whether the responder has a name for the port.
func (n naive) serves(name string) bool {
	server := n.q.Subject
	if n.q.Direction == policy.Egress {
		server = n.q.Peer
	}
	for _, p := range server.Ports {
		if p.Name == name && p.Number == n.q.Port && p.Protocol == n.q.Protocol {
			return true
		}
	}
	return false
}

type fields = map[string]any

func specs(p *cilium.Policy) (all []fields) {
	read := func(raw json.RawMessage, into any) {
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, into); err != nil {
				panic(err)
			}
		}
	}
	var one fields
	read(p.Spec, &one)
	read(p.Specs, &all)
	if one != nil {
		all = append(all, one)
	}
	return all
}

func (n naive) spec(p *cilium.Policy, spec fields) (isolates, allows, denies bool) {
	if !n.isFor(p, spec) {
		return false, false, false
	}
	name, side := "ingress", "from"
	if n.q.Direction == policy.Egress {
		name, side = "egress", "to"
	}
	allow, _ := spec[name].([]any)
	deny, _ := spec[name+"Deny"].([]any)
	isolates = len(allow)+len(deny) > 0
	_, odd := spec["during"]
	if odd && !slices.ContainsFunc([]string{"ingress", "ingressDeny", "egress", "egressDeny"}, func(s string) bool { return len(listOf(spec[s])) > 0 }) {
		isolates = true
	}
	defaults, _ := spec["enableDefaultDeny"].(fields)
	if value, found := defaults[name]; found {
		isolates = value.(bool)
	}
	for _, rule := range allow {
		allows = allows || !odd && n.rule(p, rule.(fields), side, false)
		denies = denies || n.deniesUncheckable(p, rule.(fields), side)
	}
	for _, rule := range deny {
		denies = denies || n.rule(p, rule.(fields), side, true)
	}
	return isolates, allows, denies
}

// atHome returns the subject selector of a namespaced policy without its requirements for another namespace.
func atHome(selector fields, namespace string) fields {
	elsewhere := func(key string, values ...string) bool {
		return (key == "io.kubernetes.pod.namespace" || key == "any:io.kubernetes.pod.namespace" || key == "k8s:io.kubernetes.pod.namespace") &&
			!slices.Contains(values, namespace)
	}
	out := maps.Clone(selector)
	if all, found := selector["matchLabels"].(fields); found {
		kept := maps.Clone(all)
		maps.DeleteFunc(kept, func(key string, value any) bool { return elsewhere(key, value.(string)) })
		out["matchLabels"] = kept
	}
	if all, found := selector["matchExpressions"].([]any); found {
		out["matchExpressions"] = slices.DeleteFunc(slices.Clone(all), func(one any) bool {
			e := one.(fields)
			var values []string
			for _, value := range listOf(e["values"]) {
				values = append(values, value.(string))
			}
			key, _ := e["key"].(string)
			return e["operator"] == "In" && elsewhere(key, values...)
		})
	}
	return out
}

// rule reports whether an item of a section has its effect.
func (n naive) rule(p *cilium.Policy, rule fields, side string, deny bool) bool {
	if _, found := rule["toPorts"]; found && rule["toPorts"] == nil {
		return deny
	}
	if _, found := rule[side+"Unknown"]; found {
		return deny
	}
	peers, ports := n.peers(p, rule, side, deny, deny), n.ports(rule, deny)
	if !hasPeersOrPorts(rule, side) && !(deny && odd(rule, side)) {
		return false
	}
	if deny {
		return peers != no && ports != no
	}
	return both(peers, ports) == yes && !requiresAuthentication(rule) && len(namesOfTLS(rule)) == 0
}

// peers evaluates the peers of a rule. narrowedAsDeny selects the requirements for deny rules instead of the requirements for allow rules.
func (n naive) peers(p *cilium.Policy, rule fields, side string, deny, narrowedAsDeny bool) ternary {
	result, given := no, false
	kinds := 0
	each := func(kind string, evaluate func(any) ternary) {
		if list, found := rule[side+kind].([]any); found {
			given = true
			if len(list) > 0 && (kind != "CIDRSet" || len(listOf(rule[side+"CIDR"])) == 0) {
				kinds++
			}
			for _, item := range list {
				result = either(result, evaluate(item))
			}
		}
	}
	each("Endpoints", func(item any) ternary {
		chosen := n.endpoint(p, item.(fields), deny)
		if chosen == yes && !n.meets(p.Namespace, narrowedAsDeny) {
			return no
		}
		return chosen
	})
	each("CIDR", func(item any) ternary { return n.cidr(item.(string), nil) })
	each("CIDRSet", func(item any) ternary { return n.cidrSet(item.(fields)) })
	each("Entities", func(item any) ternary { return of(n.entity(item.(string))) })
	each("Services", func(item any) ternary { return n.service(p, item.(fields), deny, narrowedAsDeny) })
	if kinds > 1 && !deny && !n.meant {
		return untold
	}
	each("Nodes", func(any) ternary { return untold })
	each("Groups", func(any) ternary { return untold })
	requires := listOf(rule[side+"Requires"])
	switch {
	case !deny && !n.meant && slices.ContainsFunc(requires, aboutHidden):
		return untold
	case !given && len(requires) > 0:
		return of((deny || n.meant) && (hasPeersOrPorts(rule, side) || odd(rule, side)))
	}
	if !given {
		return yes
	}
	return result
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}

func (n naive) cidr(text string, excepts []any) ternary {
	block, err := netip.ParsePrefix(text)
	if err != nil {
		return untold
	}
	switch n.q.Peer.Identity {
	case 2, 9, 10:
	case 1, 6, 7:
		if !n.w.Options.CIDRMatchesNodes {
			return no
		}
	default:
		return no
	}
	var out []netip.Prefix
	for _, except := range excepts {
		out = append(out, netip.MustParsePrefix(except.(string)))
	}
	return of(inBlock(n.q.Peer.Addr, block, out))
}

func (n naive) entity(name string) bool {
	id := n.q.Peer.Identity
	_, isPod := n.q.Peer.Labels["k8s:io.kubernetes.pod.namespace"]
	is := func(ids ...uint32) bool { return slices.Contains(ids, id) }
	switch name {
	case "all":
		return true
	case "world":
		return is(2, 9, 10)
	case "world-ipv4":
		return is(9)
	case "world-ipv6":
		return is(10)
	case "host":
		return is(1)
	case "remote-node":
		return is(6, 7)
	case "kube-apiserver":
		return n.apiServer()
	case "health":
		return is(4)
	case "init":
		return is(5)
	case "unmanaged":
		return is(3)
	case "cluster":
		return isPod || id != 0 && id < 9 && id != 2 || n.apiServer()
	}
	return false
}

func (n naive) apiServer() bool {
	env := n.w.Environment
	return n.q.Peer.Identity == 7 || n.q.Peer.Identity == 1 && env.APIServerHere || slices.Contains(env.APIServers, n.q.Peer.Addr)
}
