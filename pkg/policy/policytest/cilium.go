package policytest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// object is a JSON object.
type object = map[string]any

// cilium generates a Cilium policy of either scope.
func (r *random) cilium(i int) *cilium.Policy {
	p := &cilium.Policy{Name: fmt.Sprintf("cilium-%d", i), Annotations: r.annotations()}
	if r.oneIn(2) {
		p.Namespace = pick(r, namespaces...)
	}
	if r.oneIn(4) {
		p.Specs = encode(list(some(r, 2, r.spec)))
	} else {
		p.Spec = encode(r.spec())
	}
	return p
}

func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // the values are maps, lists, strings and numbers
	}
	return text
}

func (r *random) spec() object {
	spec := object{"endpointSelector": r.ciliumSelector()}
	for _, side := range []string{"from", "to"} {
		section := map[string]string{"from": "ingress", "to": "egress"}[side]
		if r.oneIn(2) {
			spec[section] = list(some(r, 2, func() object { return r.ciliumRule(side, false) }))
		}
		if r.oneIn(3) {
			spec[section+"Deny"] = list(some(r, 2, func() object { return r.ciliumRule(side, true) }))
		}
	}
	if r.oneIn(5) {
		spec["enableDefaultDeny"] = pick(r, object{"ingress": false}, object{"egress": false}, object{"ingress": true, "egress": true}, object{})
	}
	if r.oneIn(40) {
		delete(spec, "endpointSelector")
		spec["nodeSelector"] = object{}
	}
	if r.oneIn(30) {
		spec["during"] = "night"
	}
	return spec
}

// ciliumSelector generates a selector for labels of several sources. A key names its source or omits it.
func (r *random) ciliumSelector() object {
	out := object{}
	keys := podLabels
	if r.oneIn(5) {
		keys = nil
		for _, l := range nsLabels {
			keys = append(keys, append([]string{labels.KeyNamespaceLabels + "." + l[0]}, l[1:]...))
		}
	}
	s := r.selector(keys)
	source := func(key string) string { return pick(r, "", "", "k8s:", "any:") + key }
	if len(s.MatchLabels) > 0 {
		match := object{}
		for key, value := range s.MatchLabels {
			match[source(key)] = value
		}
		out["matchLabels"] = match
	}
	expressions := []object{}
	for _, e := range s.Expressions {
		one := object{"key": source(e.Key), "operator": e.Operator}
		if e.Values != nil {
			one["values"] = e.Values
		}
		expressions = append(expressions, one)
	}
	if r.oneIn(5) {
		one := object{"key": source(labels.KeyNamespace), "operator": pick(r, "In", "In", "In", "NotIn", "NotIn", "Exists", "DoesNotExist")}
		if one["operator"] == "In" || one["operator"] == "NotIn" {
			if one["values"] = some(r, 3, func() string { return pick(r, namespaces...) }); len(one["values"].([]string)) == 0 {
				one["values"] = namespaces[:1]
			}
		}
		expressions = append(expressions, one)
	}
	if r.oneIn(10) {
		expressions = append(expressions, object{"key": "reserved:" + pick(r, "host", "world", "init", "remote-node", "world-ipv4"),
			"operator": pick(r, "Exists", "DoesNotExist")})
	}
	if len(expressions) > 0 {
		out["matchExpressions"] = expressions
	}
	return out
}

// ciliumRule generates a rule with at most one kind of peers, and with ports or ICMP types.
func (r *random) ciliumRule(side string, deny bool) object {
	rule := object{}
	block := func() string { return pick(r, blocks...) }
	switch kind := r.IntN(6); {
	case side == "to" && r.oneIn(4):
		rule["toServices"] = list(some(r, 3, r.toService))
	case kind < 2:
		rule[side+"Endpoints"] = list(some(r, 2, func() object { return r.ciliumSelector() }))
	case kind == 2:
		rule[side+"CIDR"] = list(some(r, 2, block))
		if r.oneIn(2) {
			rule[side+"CIDRSet"] = list(some(r, 2, r.cidrSet))
		}
	case kind == 3:
		rule[side+"CIDRSet"] = list(some(r, 2, r.cidrSet))
	case kind == 4:
		rule[side+"Entities"] = list(some(r, 2, func() string {
			return pick(r, "all", "world", "world-ipv4", "world-ipv6", "cluster", "host", "remote-node", "kube-apiserver", "health", "init", "none", "unmanaged", "ingress")
		}))
	}
	switch r.IntN(5) {
	case 0, 1:
		rule["toPorts"] = list(some(r, 2, func() object { return object{"ports": list(some(r, 3, r.ciliumPort))} }))
	case 2:
		if r.oneIn(2) {
			rule["icmps"] = list(some(r, 2, func() object { return object{"fields": list(some(r, 2, r.icmp))} }))
		}
	}
	if r.oneIn(8) {
		rule[side+"Requires"] = list(some(r, 2, r.ciliumSelector))
	}
	if r.oneIn(12) {
		r.unsupported(rule, side, deny)
		if r.oneIn(3) {
			r.unsupported(rule, side, deny)
		}
	}
	return rule
}

// list replaces nil by an empty list, because a nil list would be null in JSON.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// cidrGroup generates a group, with or without labels and CIDRs.
func (r *random) cidrGroup(name string) *cilium.CIDRGroup {
	g := &cilium.CIDRGroup{Name: name, Labels: r.labels(groupLabels, 2)}
	g.CIDRs = some(r, 4, func() netip.Prefix { return netip.MustParsePrefix(pick(r, blocks...)) })
	slices.SortFunc(g.CIDRs, netip.Prefix.Compare)
	g.CIDRs = slices.Compact(g.CIDRs)
	return g
}

// groupSelector converts a selector of labels without sources to JSON.
func groupSelector(s k8s.Selector) object {
	out := object{}
	if len(s.MatchLabels) > 0 {
		out["matchLabels"] = s.MatchLabels
	}
	var expressions []object
	for _, e := range s.Expressions {
		one := object{"key": e.Key, "operator": e.Operator}
		if e.Values != nil {
			one["values"] = e.Values
		}
		expressions = append(expressions, one)
	}
	if len(expressions) > 0 {
		out["matchExpressions"] = expressions
	}
	return out
}

func (r *random) cidrSet() object {
	block := netip.MustParsePrefix(pick(r, blocks...))
	if r.oneIn(3) {
		set := object{"cidrGroupRef": pick(r, groupNames...)}
		if r.oneIn(3) {
			delete(set, "cidrGroupRef")
			set["cidrGroupSelector"] = groupSelector(r.selector(groupLabels))
		}
		if r.oneIn(3) {
			set["except"] = append(r.excepts(block), block)
		}
		return set
	}
	set := object{"cidr": block.String()}
	if excepts := r.excepts(block); len(excepts) > 0 {
		set["except"] = excepts
	}
	return set
}

func (r *random) ciliumPort() object {
	port := object{"port": fmt.Sprint(pick(r, portNumbers...))}
	switch r.IntN(5) {
	case 0:
		port["port"] = pick(r, portNames...)
	case 1:
		port["port"] = "0"
	case 2:
		port["endPort"] = pick(r, 0, 8081, 65535)
	}
	if r.oneIn(2) {
		port["protocol"] = pick(r, "TCP", "UDP", "SCTP", "ANY")
	}
	return port
}

func (r *random) icmp() object {
	field := object{"type": pick[any](r, 8, 0, 3, 128, "EchoRequest")}
	if r.oneIn(2) {
		field["family"] = pick(r, "IPv4", "IPv6")
	}
	return field
}

// unsupported adds an unsupported or invalid field.
func (r *random) unsupported(rule object, side string, deny bool) {
	switch r.IntN(9) {
	case 0:
		rule["authentication"] = object{"mode": pick(r, "required", "disabled")}
	case 1:
		rule[side+"Nodes"] = []object{{}}
	case 2:
		rule[side+"Groups"] = []object{{"aws": object{}}}
	case 3:
		rule[side+"Unknown"] = []string{"value"}
	case 4:
		rule[side+"CIDR"] = []string{"10.0.0.0/33"}
	case 5:
		if !deny {
			rule["toPorts"] = []object{{"ports": []object{{"port": "80", "protocol": "TCP"}}, "rules": object{"http": []object{{}}}}}
			break
		}
		rule["toPorts"] = []object{{"ports": []object{{"port": "no such port"}}}}
	case 6:
		rule["toPorts"] = nil
	case 7:
		rule[side+"Endpoints"] = []object{{"matchExpressions": []object{{"key": "app", "operator": "Like", "values": []string{"web"}}}}}
	case 8:
		rule["toPorts"] = []object{{"ports": []object{{"port": "80", "protocol": "TCP"}}, "serverNames": []string{"a.example"}},
			{"ports": []object{{"port": "8080", "protocol": "TCP"}}}}
	}
}
