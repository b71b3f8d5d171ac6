package bpf

import (
	"encoding/binary"
	"math/bits"
)

// Policy ids that need no entries.
const (
	PolicyDropAll  uint32 = 0
	PolicyAllowAll uint32 = 1
)

// PolicyKind says whom an entry of a policy is about.
type PolicyKind uint8

const (
	PolicyAny         = PolicyKind(0) // everybody; the identity is 0
	PolicyIdentity    = PolicyKind(1) // who has the identity
	PolicyCIDR        = PolicyKind(2) // whoever has an address in the named CIDR
	PolicyCIDROutside = PolicyKind(3) // the same, outside the cluster only
	PolicyClass       = PolicyKind(4) // who has an identity of the class: see [MapIdentityClasses]
)

// PolicyLevel says how much an entry says of the upper protocol.
type PolicyLevel uint8

const (
	PolicyAll      = PolicyLevel(0) // all protocols and ports
	PolicyProtocol = PolicyLevel(1) // one protocol, all its ports
	PolicyPort     = PolicyLevel(2) // one protocol, one port; the type of ICMP is its port

	policyLevels = 3
	// shapeRanges is the first bit of a shape that stands for policy_ranges.
	shapeRanges = 12
	// shapeClass is the first bit of a shape that stands for entries of [PolicyClass].
	shapeClass = 19
	// policyRangeStatic is what all before the port adds to the length of each prefix in a [PolicyRangeKey].
	policyRangeStatic = 80
)

// ShapeLocalhost is the bit of a shape with which the local host is allowed, whatever entries say.
const ShapeLocalhost uint32 = 1 << 16

// ShapeNested is the bit of a shape with which entries about a CIDR count in the CIDRs inside it; ShapeStops says that there are entries of
// [PolicyStop].
const (
	ShapeNested uint32 = 1 << 17
	ShapeStops  uint32 = 1 << 18
)

// ShapeClasses are the bits of a shape that has entries of [PolicyClass].
const ShapeClasses uint32 = (1<<(policyLevels+1) - 1) << shapeClass

// PolicyStop is the protocol of an entry about a CIDR that says: the CIDRs around this one do not count in it.
const PolicyStop uint8 = 255

// ShapeEntry is the bit that the shape of a policy id has when the map policy holds entries of that kind and level.
func ShapeEntry(kind PolicyKind, level PolicyLevel) uint32 {
	if kind == PolicyClass {
		return 1 << (shapeClass + uint32(level))
	}
	return 1 << (uint32(kind)*policyLevels + uint32(level))
}

// ShapeRange is the bit that it has when policy_ranges holds entries of that kind.
func ShapeRange(kind PolicyKind) uint32 {
	if kind == PolicyClass {
		return 1 << (shapeClass + policyLevels)
	}
	return 1 << (shapeRanges + uint32(kind))
}

// NewPolicyKey makes the key of everything that an entry of that level says; what a wider level does not say is ignored.
func NewPolicyKey(policy uint32, kind PolicyKind, identity uint32, level PolicyLevel, protocol uint8, port uint16) PolicyKey {
	key := PolicyKey{Policy: policy, Identity: identity, Kind: uint8(kind)}
	if level >= PolicyProtocol {
		key.Protocol = protocol
	}
	if level == PolicyPort {
		key.Port, key.PortBits = wirePort(port), 16
	}
	return key
}

// Level is the level of an entry with this key.
func (k PolicyKey) Level() PolicyLevel {
	switch {
	case k.PortBits != 0:
		return PolicyPort
	case k.Protocol != 0:
		return PolicyProtocol
	}
	return PolicyAll
}

// HostPort is the port of the key as a number.
func (k PolicyKey) HostPort() uint16 { return wirePort(k.Port) }

// NewPolicyRangeKey makes the key of all ports whose first portBits bits (0 to 16) are those of port.
func NewPolicyRangeKey(policy uint32, kind PolicyKind, identity uint32, protocol uint8, port uint16, portBits int) PolicyRangeKey {
	port &= ^uint16(0) << (16 - portBits)
	return PolicyRangeKey{Prefixlen: uint32(policyRangeStatic + portBits), Policy: policy, Identity: identity, Kind: uint8(kind),
		Protocol: protocol, Port: wirePort(port)}
}

// Ports are the first and the last port that the key stands for.
func (k PolicyRangeKey) Ports() (first, last uint16) {
	first = wirePort(k.Port)
	return first, first | ^uint16(0)>>min(max(int(k.Prefixlen)-policyRangeStatic, 0), 16)
}

// PortPrefix is a block of ports that have their first Bits bits in common.
type PortPrefix struct {
	Port uint16
	Bits int // 0 to 16
}

// PortPrefixes are the fewest blocks that hold the ports from first to last and no other; none when first is above last.
func PortPrefixes(first, last uint16) (out []PortPrefix) {
	for at, end := uint32(first), uint32(last); at <= end; {
		size := bits.TrailingZeros32(at | 1<<16) // the largest block that may begin here
		for at+1<<size-1 > end {
			size--
		}
		out = append(out, PortPrefix{uint16(at), 16 - size})
		at += 1 << size
	}
	return out
}

// wirePort turns a port into the field of a key, whose bytes lie in network order, and back.
func wirePort(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}
