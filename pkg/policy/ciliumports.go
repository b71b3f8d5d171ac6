package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ports parses toPorts and icmps. A rule without both fields matches all ports. An empty list is invalid, because it may mean all ports or none.
func (r *ciliumRule) ports() Ports {
	toPorts, hasPorts := r.fields["toPorts"]
	icmps, hasICMPs := r.fields["icmps"]
	if !hasPorts && !hasICMPs {
		return Ports{Any: true}
	}
	if hasPorts && hasICMPs {
		r.invalid("", "it has both toPorts and icmps, which need a rule each")
	}
	var ports Ports
	if hasPorts {
		r.list("toPorts", toPorts, func(path string, item json.RawMessage) error { return r.toPorts(&ports, path, item) })
	}
	if hasICMPs {
		r.list("icmps", icmps, func(path string, item json.RawMessage) error { return r.icmps(&ports, path, item) })
	}
	if ports.Any {
		ports.List = nil
	}
	return ports
}

// list parses the items of a field about ports. The list must not be empty.
func (r *ciliumRule) list(field string, raw json.RawMessage, read func(path string, item json.RawMessage) error) {
	var items []json.RawMessage
	err := decode(raw, &items)
	if err == nil && len(items) == 0 {
		err = errors.New("the list is empty, which may mean all or none")
	}
	if err != nil {
		r.invalid(field, short(err))
		r.anyPorts = true
	}
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", field, i)
		if err := read(path, item); err != nil {
			r.invalid(path, short(err))
			r.anyPorts = true
		}
	}
}

// inside are the fields of toPorts that inspect connections. A deny rule with such a field denies all connections on its ports.
var inside = []string{"rules", "terminatingTLS", "originatingTLS", "listener"}

func (r *ciliumRule) toPorts(ports *Ports, path string, item json.RawMessage) error {
	fields, err := object(item)
	if err != nil {
		return err
	}
	for _, field := range inside {
		raw, found := fields[field]
		switch {
		case !found || isEmptyL7(raw):
		case field == "rules":
			r.l7Rules(path+"."+field, raw)
		default:
			r.unsupported(path+"."+field, "toPorts."+field+" is not supported", "leave it out to mean all connections on the port")
		}
	}
	for _, field := range unknown(fields, append([]string{"ports", "serverNames"}, inside...)...) {
		r.unsupported(path+"."+field, "the field is unknown", "leave it out")
		r.anyPorts = true
	}
	var these Ports
	r.list(path+".ports", fields["ports"], func(_ string, item json.RawMessage) error { return r.port(&these, item) })
	ports.Any = ports.Any || these.Any
	ports.List = append(ports.List, these.List...)
	if names, found := fields["serverNames"]; found && !isEmptyL7(names) {
		r.denyUncheckable(path+".serverNames", "toPorts.serverNames is not supported", "leave it out to mean all connections on the port", these)
	}
	return nil
}

// l7Rules reports rules about requests. They do not narrow a deny rule.
func (r *ciliumRule) l7Rules(path string, raw json.RawMessage) {
	_, err := object(raw)
	if r.deny || err != nil || !r.env.AllowL7Ports {
		r.unsupported(path, "toPorts.rules is not supported", "leave it out to mean all connections on the port, which --l7-rules=allow-port does for all policies")
		return
	}
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonUnsupported,
		Message: "toPorts.rules is not supported: the rule allows all connections on the port, because of --l7-rules=allow-port; leave toPorts.rules out"})
}

// isEmptyL7 reports whether a field that inspects connections is empty: a list without items, or protocols without rules.
func isEmptyL7(raw json.RawMessage) bool {
	var list []json.RawMessage
	if decode(raw, &list) == nil {
		return len(list) == 0
	}
	fields, err := object(raw)
	if err != nil || len(unknown(fields, "http", "kafka", "dns", "l7")) > 0 {
		return false
	}
	for _, rules := range fields {
		if decode(rules, &list) != nil || len(list) > 0 {
			return false
		}
	}
	return true
}

// port adds one port, if the policy may have one more name.
func (r *ciliumRule) port(ports *Ports, item json.RawMessage) error {
	var one Ports
	if err := one.addCilium(item); err != nil {
		return err
	}
	if len(one.List) > 0 && !r.portNames.add(one.List[0].Name) {
		return errPortNames
	}
	ports.Any = ports.Any || one.Any
	ports.List = append(ports.List, one.List...)
	return nil
}

// addCilium adds one port; a port of any protocol becomes several.
func (p *Ports) addCilium(item json.RawMessage) error {
	var o struct {
		Port     string `json:"port"`
		EndPort  int64  `json:"endPort"`
		Protocol string `json:"protocol"`
	}
	if err := decode(item, &o); err != nil {
		return err
	}
	one, err := portOf(o.Port, o.EndPort)
	if err != nil {
		return err
	}
	name := strings.ToUpper(o.Protocol)
	if icmp, found := map[string]uint8{"ICMP": ProtocolICMP, "ICMPV6": ProtocolICMPv6}[name]; found {
		if one.Name != "" || one.High > maxICMPType {
			return errors.New("the port " + quote(o.Port) + " is no type of ICMP")
		}
		one.Protocol = icmp
		p.List = append(p.List, one)
		return nil
	}
	if name == "" || name == "ANY" {
		if one.All {
			p.Any = true
			return nil
		}
		for _, protocol := range []uint8{ProtocolTCP, ProtocolUDP, ProtocolSCTP} {
			one.Protocol = protocol
			p.List = append(p.List, one)
		}
		return nil
	}
	protocol, found := protocols[name]
	if !found {
		return errors.New("the protocol " + quote(o.Protocol) + " is not known")
	}
	one.Protocol = protocol
	p.List = append(p.List, one)
	return nil
}

// portOf parses a number, "0" for all, a range or a name.
func portOf(text string, end int64) (Port, error) {
	number, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil && end != 0:
		return Port{}, errors.New("endPort does not go with the port " + quote(text))
	case err != nil && !isPortName(text):
		return Port{}, errors.New("the port " + quote(text) + " is neither a number up to 65535 nor the name of a port")
	case err != nil:
		return Port{Name: strings.ToLower(text)}, nil
	case end < 0 || end > 65535 || end != 0 && uint64(end) < number || end != 0 && number == 0:
		return Port{}, fmt.Errorf("endPort %d does not end a range that begins at %d", end, number)
	case number == 0:
		return Port{All: true}, nil
	}
	return Port{Low: uint16(number), High: max(uint16(number), uint16(end))}, nil
}

// isPortName reports whether text is a valid name of a container port: up to 15 letters, digits and dashes, with at least one letter. Dashes are single,
// and neither first nor last.
func isPortName(text string) bool {
	letter := false
	for i, c := range []byte(text) {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			letter = true
		case c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(text)-1 && text[i-1] != '-':
		default:
			return false
		}
	}
	return letter && len(text) <= 15
}
