package bpf

import (
	"encoding/binary"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// lpmStaticBits is the number of bits of family and pad in the length of each prefix in an [LpmKey].
const lpmStaticBits = 32

// NewAddrKey returns the key of one address. An IPv4 address mapped into IPv6 becomes plain IPv4.
func NewAddrKey(addr netip.Addr) AddrKey {
	addr = addr.Unmap()
	key := AddrKey{Family: family(addr)}
	copy(key.Addr[:], addr.AsSlice())
	return key
}

// AddrOf is the inverse of [NewAddrKey]; the result is invalid when the key's family is neither 4 nor 6.
func AddrOf(key AddrKey) netip.Addr { return addrOf(key.Family, key.Addr) }

// NewLpmKey returns the key of one prefix, whose host bits are ignored.
func NewLpmKey(prefix netip.Prefix) LpmKey {
	prefix = prefix.Masked()
	key := LpmKey{Prefixlen: uint32(lpmStaticBits + prefix.Bits()), Family: family(prefix.Addr())}
	copy(key.Addr[:], prefix.Addr().AsSlice())
	return key
}

// PrefixOf is the inverse of [NewLpmKey]; the result is invalid when no prefix has this key.
func PrefixOf(key LpmKey) netip.Prefix {
	addr := addrOf(key.Family, key.Addr)
	if !addr.IsValid() || key.Prefixlen < lpmStaticBits || key.Prefixlen > lpmStaticBits+128 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, int(key.Prefixlen)-lpmStaticBits)
}

// IPv4Word returns an IPv4 address in the representation of the programs: four bytes in network order, read as one native integer. The result is 0 for any
// other address.
func IPv4Word(addr netip.Addr) uint32 {
	if !addr.Is4() {
		return 0
	}
	b := addr.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// IPv4OfWord is the inverse of [IPv4Word]; 0 is the invalid address.
func IPv4OfWord(word uint32) netip.Addr {
	if word == 0 {
		return netip.Addr{}
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], word)
	return netip.AddrFrom4(b)
}

// IPv6Bytes returns an IPv6 address in the representation of the programs. The result is all zeros for any other address.
func IPv6Bytes(addr netip.Addr) (b [16]byte) {
	if addr.Is6() {
		b = addr.As16()
	}
	return b
}

func family(addr netip.Addr) uint8 {
	switch {
	case addr.Is4():
		return 4
	case addr.Is6():
		return 6
	}
	return 0
}

func addrOf(family uint8, b [16]byte) netip.Addr {
	switch family {
	case 4:
		return netip.AddrFrom4([4]byte(b[:4]))
	case 6:
		return netip.AddrFrom16(b)
	}
	return netip.Addr{}
}

// NewServiceKey returns the key of a frontend; scope is [ScopeExternal] or [ScopeInternal].
func NewServiceKey(a loadbalancer.Address, scope uint8) ServiceKey {
	return ServiceKey{Addr: NewAddrKey(a.Addr), Port: wirePort(a.Port), Protocol: uint8(a.Protocol), Scope: scope}
}

// AddressOfService is the inverse of [NewServiceKey], except for the scope.
func AddressOfService(k ServiceKey) loadbalancer.Address {
	return loadbalancer.Address{Addr: AddrOf(k.Addr), Port: wirePort(k.Port), Protocol: loadbalancer.Protocol(k.Protocol)}
}

// NewBackend returns the value of a backend.
func NewBackend(a loadbalancer.Address, flags uint8) Backend {
	return Backend{Addr: NewAddrKey(a.Addr), Port: wirePort(a.Port), Protocol: uint8(a.Protocol), Flags: flags}
}

// AddressOfBackend is the inverse of [NewBackend], except for the flags.
func AddressOfBackend(b Backend) loadbalancer.Address {
	return loadbalancer.Address{Addr: AddrOf(b.Addr), Port: wirePort(b.Port), Protocol: loadbalancer.Protocol(b.Protocol)}
}

// rangeStaticBits is the number of bits of service, family and pad in the length of each prefix in a [SourceRangeKey].
const rangeStaticBits = 64

// rangeDeny is SOURCE_RANGE_DENY.
const rangeDeny = 128

// SourceRange is a prefix whose addresses are allowed to use a frontend, or denied.
type SourceRange struct {
	netip.Prefix
	Deny bool
}

// NewSourceRangeKey returns the key of a range of the frontend with this id.
func NewSourceRangeKey(service uint32, r SourceRange) SourceRangeKey {
	prefix := r.Masked()
	key := SourceRangeKey{Prefixlen: uint32(rangeStaticBits + prefix.Bits()), Service: service, Family: family(prefix.Addr())}
	if r.Deny {
		key.Family |= rangeDeny
	}
	copy(key.Addr[:], prefix.Addr().AsSlice())
	return key
}

// SourceRangeOf returns the range of a key; its prefix is invalid when no prefix has this key.
func SourceRangeOf(key SourceRangeKey) SourceRange {
	addr := addrOf(key.Family&^rangeDeny, key.Addr)
	if !addr.IsValid() || key.Prefixlen < rangeStaticBits || key.Prefixlen > rangeStaticBits+128 {
		return SourceRange{}
	}
	return SourceRange{netip.PrefixFrom(addr, int(key.Prefixlen)-rangeStaticBits), key.Family&rangeDeny != 0}
}
