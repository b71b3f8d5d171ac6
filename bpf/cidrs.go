package bpf

import (
	"net/netip"
	"slices"
)

// cidrSize is the size of a value of cidrs: identity and length of the key. In the previous release a value has only the identity.
const cidrSize = 8

// NewCIDR returns the value of a prefix.
func NewCIDR(prefix netip.Prefix, identity uint32) CIDR {
	return CIDR{Identity: identity, Bits: NewLpmKey(prefix).Prefixlen}
}

// cidrForward appends the length, which is the first field of the key.
func cidrForward(key, value []byte) ([]byte, []byte, bool) {
	if len(key) < 4 || len(value) != cidrSize/2 {
		return nil, nil, false
	}
	return key, slices.Concat(value, key[:4]), true
}

func cidrBack(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != cidrSize {
		return nil, nil, false
	}
	return key, value[: cidrSize/2 : cidrSize/2], true
}
