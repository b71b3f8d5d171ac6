package clusternodes

import "net/netip"

// Minimum prefix lengths of pod ranges. A shorter prefix would cover a large part of the address space.
const (
	shortestIPv4 = 8
	shortestIPv6 = 16
)

// ParseRange parses a pod range and masks it. It returns false for a text that is not a prefix, for a prefix that is too
// short, and for addresses that no pod can have.
func ParseRange(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() || prefix.Bits() < shortestIPv6 && prefix.Addr().Is6() || prefix.Bits() < shortestIPv4 {
		return netip.Prefix{}, false
	}
	prefix = prefix.Masked()
	return prefix, Usable(prefix.Addr())
}

// Usable reports whether an address can be the address of a pod or node to other nodes: global unicast, not IPv4-mapped and without a zone.
func Usable(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.Is4In6() && addr.Zone() == ""
}
