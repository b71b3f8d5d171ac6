package policy

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ciliumRule parses one item of a section. A part that cannot be enforced becomes a problem. An allow rule is then omitted. A deny rule is widened: to
// every peer if its peers cannot be enforced, to all ports if its ports cannot. The same holds for an allow rule that denies.
type ciliumRule struct {
	*ciliumParser
	section
	path string

	fields map[string]json.RawMessage
	// closed is set if the rule must allow nothing. anyPeers and anyPorts are set if a deny rule must match every peer or all ports.
	closed, anyPeers, anyPorts bool
	// uncheckable is set if an allow rule allows only connections that the datapath cannot distinguish from others on some ports: all connections on these
	// ports are denied.
	uncheckable bool
	denied      Ports
	// required are the conditions on peers that apply to all rules.
	required []PeerRequirement
}

func (r *ciliumRule) parse(raw json.RawMessage) (Rule, bool) {
	rule := Rule{Path: r.path, Direction: r.direction, Deny: r.deny}
	r.portNames.nextRule()
	var err error
	if r.fields, err = object(raw); err != nil || hasNull(raw) {
		why := "there is a null in it"
		if err != nil {
			why = short(err)
		}
		r.invalid("", why)
		r.anyPeers, r.anyPorts = true, true
		if _, found := r.fields[r.side()+"Requires"]; found {
			r.unmet(r.side() + "Requires")
		}
	} else {
		rule.Peers = r.peers()
		rule.Ports = r.ports()
		r.requirements()
		r.others(rule.Ports)
	}
	switch {
	case r.uncheckable: // denies even if the rule is closed: another problem of the rule must not lift the deny
		rule.Deny, rule.Ports = true, r.denied
	case r.closed && !r.deny:
		return Rule{}, false
	case !r.closed && rule.Peers.Any && rule.Ports.Any && !r.given():
		return Rule{}, false // an item without peers and ports only isolates
	}
	if r.anyPeers {
		rule.Peers = Peers{Any: true}
	}
	if r.anyPorts {
		rule.Ports = Ports{Any: true}
	}
	return rule, true
}

// given reports whether the item has a field of peers or ports.
func (r *ciliumRule) given() bool {
	for _, kind := range r.kinds() {
		if _, found := r.fields[kind.field]; found {
			return true
		}
	}
	_, ports := r.fields["toPorts"]
	_, icmps := r.fields["icmps"]
	return ports || icmps
}

// requirements parses fromRequires or toRequires, which select no peer themselves.
func (r *ciliumRule) requirements() {
	field := r.side() + "Requires"
	raw, found := r.fields[field]
	if !found {
		return
	}
	var items []json.RawMessage
	if err := decode(raw, &items); err != nil {
		r.invalid(field, short(err))
		r.unmet(field)
	}
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", field, i)
		selector, err := r.peerSelector(item)
		if err != nil {
			r.invalid(path, short(err))
			r.unmet(path)
			continue
		}
		if r.usesOtherSources(path, selector) || r.usesHiddenLabel(path, selector) {
			r.unmet(path)
			continue
		}
		if !r.conditions.add(selector.Requirements, maxPolicyConditions) {
			r.invalid(path, fmt.Sprintf("the policy has more than %d conditions in fromRequires and toRequires", maxPolicyConditions))
			r.unmet(path)
			continue
		}
		r.required = append(r.required, PeerRequirement{Path: r.path + "." + path, Direction: r.direction, Deny: r.deny, Labels: *selector})
	}
	if len(items) > 0 && r.given() && !slices.ContainsFunc(r.kinds(), func(k kind) bool { return r.fields[k.field] != nil }) {
		r.invalid(field, field+" selects no peer by itself, and there is none beside it")
	}
}

// usesHiddenLabel reports a requirement on a label that is not part of identities. No peer can be checked for such a label.
func (r *ciliumRule) usesHiddenLabel(path string, s *Selector) bool {
	i := slices.IndexFunc(s.Requirements, func(q Requirement) bool { return !r.env.keeps(&q) })
	if i < 0 {
		return false
	}
	r.closed = true
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonLabel, Message: "the label " + quote(s.Requirements[i].Source+":"+s.Requirements[i].Key) +
		" is not part of identities: " + outcome(r.deny) + "; require another label, or add it to --labels"})
	return true
}

// unmet adds a requirement that no peer meets, in place of a requirement that cannot be checked. It adds none to a deny rule, which must not be narrowed.
func (r *ciliumRule) unmet(field string) {
	if !r.deny {
		r.required = append(r.required, PeerRequirement{Path: r.path + "." + field, Direction: r.direction,
			Labels: Selector{Requirements: []Requirement{{Source: AnySource, Key: "a requirement that cannot be checked", Operator: In}}}})
	}
}

// others parses the fields that describe neither peers nor ports.
func (r *ciliumRule) others(ports Ports) {
	known := []string{"toPorts", "icmps", "authentication", r.side() + "Requires"}
	for _, kind := range r.kinds() {
		known = append(known, kind.field)
	}
	for _, field := range unknown(r.fields, known...) {
		r.unsupported(field, "the field is unknown", "leave it out")
		r.anyPeers, r.anyPorts = true, true
	}
	raw, found := r.fields["authentication"]
	if !found {
		return
	}
	var authentication struct {
		Mode string `json:"mode"`
	}
	if err := decode(raw, &authentication); err != nil || authentication.Mode != "disabled" {
		r.denyUncheckable("authentication", "authentication of peers is not supported", "leave it out, or set its mode to disabled", ports)
	}
}

// denyUncheckable handles a condition on connections that the datapath cannot check. In Cilium the condition of an allow rule applies to its peers and ports
// regardless of other rules, so their connections are denied. An item without peers and ports only isolates.
func (r *ciliumRule) denyUncheckable(field, what, advice string, ports Ports) {
	if r.deny || !r.given() && !r.anyPeers {
		r.unsupported(field, what, advice)
		return
	}
	r.uncheckable = true
	r.denied.Any = r.denied.Any || ports.Any
	r.denied.List = append(r.denied.List, ports.List...)
	r.policy.add(Problem{Path: r.path + "." + field, Reason: ReasonUnsupported,
		Message: what + ": the rule allows nothing, and connections that it may mean on these ports are denied, also where another rule allows them; " + advice})
}

// unsupported reports a field that is not enforced, and closes the rule.
func (r *ciliumRule) unsupported(field, what, advice string) {
	r.closed = true
	r.policy.add(Problem{Path: r.path + "." + field, Reason: ReasonUnsupported, Message: what + ": " + outcome(r.deny) + "; " + advice})
}

// invalid reports an error in a field, or in the whole rule if field is empty, and closes the rule.
func (r *ciliumRule) invalid(field, what string) {
	r.closed = true
	path := r.path
	if field != "" {
		path += "." + field
	}
	r.policy.invalid(path, what+": "+outcome(r.deny)+"; correct it")
}
