package clusternodes

import "net/netip"

// Ranges shorter than these would be most of the world, which is no range of pods.
const (
	shortestIPv4 = 8
	shortestIPv6 = 16
)

// ParseRange reads a range of pods, masked. It reports false for text that is no prefix, for a prefix that is most of
// the world, and for addresses that no pod can have.
func ParseRange(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() || prefix.Bits() < shortestIPv6 && prefix.Addr().Is6() || prefix.Bits() < shortestIPv4 {
		return netip.Prefix{}, false
	}
	prefix = prefix.Masked()
	return prefix, Usable(prefix.Addr())
}

// Usable tells whether a pod or a node may have an address at all, as far as others are concerned.
func Usable(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.Is4In6() && addr.Zone() == ""
}
