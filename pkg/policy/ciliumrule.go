package policy

import (
	"encoding/json"
)

// ciliumRule reads one item of a section. What it cannot enforce is a problem. Then a rule that allows is left out, and one
// that denies speaks of more: of everybody when its peers are the trouble, of all ports when its ports are.
type ciliumRule struct {
	*ciliumParser
	section
	path string

	fields map[string]json.RawMessage
	// closed: the rule must not allow anything. anyPeers and anyPorts: what it denies cannot be narrowed by them.
	closed, anyPeers, anyPorts bool
}

func (r *ciliumRule) parse(raw json.RawMessage) (Rule, bool) {
	rule := Rule{Path: r.path, Direction: r.direction, Deny: r.deny}
	var err error
	if r.fields, err = object(raw); err != nil || hasNull(raw) {
		why := "there is a null in it"
		if err != nil {
			why = short(err)
		}
		r.invalid("", why)
		r.anyPeers, r.anyPorts = true, true
	} else {
		rule.Peers = r.peers()
		rule.Ports = r.ports()
		r.others()
	}
	switch {
	case r.closed && !r.deny:
		return Rule{}, false
	case !r.closed && rule.Peers.Any && rule.Ports.Any && !r.given():
		return Rule{}, false // an item that says nothing isolates and does nothing else
	}
	if r.anyPeers {
		rule.Peers = Peers{Any: true}
	}
	if r.anyPorts {
		rule.Ports = Ports{Any: true}
	}
	return rule, true
}

// given tells whether the item says anything about peers or ports.
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

// others reads what is neither peers nor ports.
func (r *ciliumRule) others() {
	known := []string{"toPorts", "icmps", "authentication"}
	for _, kind := range r.kinds() {
		known = append(known, kind.field)
	}
	for _, field := range unknown(r.fields, known...) {
		r.unsupported(field, "the field is not known here", "leave it out")
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
		r.unsupported("authentication", "authentication of peers is not supported", "leave it out, or set its mode to disabled")
	}
}

// unsupported says that a field asks for something that is not enforced.
func (r *ciliumRule) unsupported(field, what, advice string) {
	r.closed = true
	r.policy.add(Problem{Path: r.path + "." + field, Reason: ReasonUnsupported, Message: what + ": " + outcome(r.deny) + "; " + advice})
}

// invalid says what is wrong in a field, or in the whole rule.
func (r *ciliumRule) invalid(field, what string) {
	r.closed = true
	path := r.path
	if field != "" {
		path += "." + field
	}
	r.policy.invalid(path, what+": "+outcome(r.deny)+"; correct it")
}
