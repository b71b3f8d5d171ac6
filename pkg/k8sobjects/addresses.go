package k8sobjects

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parseAddr reads an address of a field.
func parseAddr(path *field.Path, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, field.Invalid(path, text, "must be an IP address")
	}
	return addr, nil
}

// parseAddrs reads a list of addresses.
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

// parsePrefixes reads a list of CIDRs and cuts off their host bits.
func parsePrefixes(path *field.Path, texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return nil, field.Invalid(path.Index(i), text, "must be a CIDR")
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return prefixes, nil
}
