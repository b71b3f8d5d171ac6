package k8sobjects

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parseAddr parses an address of a field.
func parseAddr(path *field.Path, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, field.Invalid(path, text, "must be an IP address")
	}
	return addr, nil
}

// parseAddrs parses a list of addresses.
func parseAddrs(path *field.Path, texts []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for i, text := range texts {
		addr, err := parseAddr(path.Index(i), text)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parsePrefix parses a CIDR and clears its host bits.
func parsePrefix(path *field.Path, text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, field.Invalid(path, text, "must be a CIDR")
	}
	return prefix.Masked(), nil
}

// parsePrefixes parses a list of CIDRs and clears their host bits.
func parsePrefixes(path *field.Path, texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for i, text := range texts {
		prefix, err := parsePrefix(path.Index(i), text)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// maxShown limits the shown part of an invalid text in bytes.
const maxShown = 64

// readEach parses a list. It skips invalid texts and reports each with the reason. It skips repeated values too, which API servers accept: each address of a
// Service is served at each of its ports.
func readEach[V comparable](path *field.Path, texts []string, parse func(*field.Path, string) (V, error), problem func(string)) (list []V) {
	seen := map[V]bool{}
	for i, text := range texts {
		if len(text) > maxShown {
			text = text[:maxShown] + "..." // no valid text is as long
		}
		v, err := parse(path.Index(i), text)
		if err != nil {
			problem(err.Error())
			continue
		}
		if !seen[v] {
			seen[v], list = true, append(list, v)
		}
	}
	return list
}
