package config

import (
	"fmt"

	"github.com/spf13/pflag"
)

const (
	tunnelKey  = "tunnel" // of Cilium 1.14 and older
	routingKey = "routing-mode"
)

// routingModes maps values of tunnel to values of routing-mode.
var routingModes = map[string]string{"disabled": "native", "vxlan": "tunnel"}

// translate replaces the old key tunnel by routing-mode from the same source. It changes nothing when no cell reads routing-mode.
func translate(flags *pflag.FlagSet, entries []entry) (out []entry, errs []error) {
	mode := flags.Lookup(routingKey)
	if mode == nil || isForeign(mode) || otherRole(mode) != "" {
		return entries, nil
	}
	for _, e := range entries {
		if e.key != tunnelKey || e.value == "" {
			out = append(out, e)
			continue
		}
		value, known := routingModes[e.value]
		switch other, contradicts := contradiction(entries, e.source, value); {
		case e.value == "geneve":
			errs = append(errs, fmt.Errorf("%s=%s: is not supported: use vxlan on all nodes", e.origin, e.value))
		case !known:
			errs = append(errs, fmt.Errorf("%s=%s: want disabled or vxlan, or %s in its place", e.origin, shorten(e.value), routingKey))
		case contradicts:
			errs = append(errs, fmt.Errorf("%s=%s means %s=%s and contradicts %s=%s: remove one of them", e.origin, e.value, routingKey, value, other.origin, shorten(other.value)))
		default:
			out = append(out, entry{key: routingKey, value: value, origin: e.origin, source: e.source})
		}
	}
	return out, errs
}

// contradiction returns an entry of routing-mode from the same source with another value.
func contradiction(entries []entry, source Source, value string) (entry, bool) {
	for _, e := range entries {
		if e.key == routingKey && e.source == source && e.value != "" && e.value != value {
			return e, true
		}
	}
	return entry{}, false
}
