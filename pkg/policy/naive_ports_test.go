package policy_test

import (
	"slices"
	"strconv"
	"strings"
)

func (n naive) ports(rule fields, deny bool) ternary {
	toPorts, hasPorts := rule["toPorts"]
	icmps, hasICMPs := rule["icmps"]
	if !hasPorts && !hasICMPs {
		return yes
	}
	if hasPorts && hasICMPs && !deny && !n.meant {
		return untold
	}
	result := no
	nonEmpty := func(v any) []any {
		if len(listOf(v)) == 0 {
			result = untold
		}
		return listOf(v)
	}
	if hasPorts {
		for _, item := range nonEmpty(toPorts) {
			if _, inside := item.(fields)["rules"]; inside && !deny && !n.meant {
				return untold
			}
			for _, port := range nonEmpty(item.(fields)["ports"]) {
				result = either(result, n.port(port.(fields)))
			}
		}
	}
	if hasICMPs {
		for _, item := range nonEmpty(icmps) {
			for _, field := range nonEmpty(item.(fields)["fields"]) {
				result = either(result, n.icmp(field.(fields)))
			}
		}
	}
	return result
}

func (n naive) port(port fields) ternary {
	protocol, _ := port["protocol"].(string)
	text := port["port"].(string)
	if text == "0" && (protocol == "" || protocol == "ANY") {
		return yes
	}
	end, _ := port["endPort"].(float64)
	from, err := strconv.Atoi(text)
	if err != nil && strings.Contains(text, " ") || end != 0 && (text == "0" || int(end) < from) {
		return untold
	}
	switch protocol {
	case "", "ANY":
		if !slices.Contains([]uint8{6, 17, 132}, n.q.Protocol) {
			return no
		}
	default:
		if number(protocol) != n.q.Protocol {
			return no
		}
	}
	switch {
	case err != nil:
		return of(n.serves(text))
	case from == 0:
		return yes
	case end == 0:
		return of(int(n.q.Port) == from)
	}
	return of(int(n.q.Port) >= from && int(n.q.Port) <= int(end))
}

func (n naive) icmp(field fields) ternary {
	protocol, echo := uint8(1), 8
	if field["family"] == "IPv6" {
		protocol, echo = 58, 128
	}
	kind := echo
	if value, isNumber := field["type"].(float64); isNumber {
		kind = int(value)
	}
	return of(n.q.Protocol == protocol && int(n.q.Port) == kind)
}
