package bpf

import "encoding/binary"

// Policy ids that need no entries.
const (
	PolicyDropAll  uint32 = 0
	PolicyAllowAll uint32 = 1
)

// PolicyKind is the kind of peer that an entry of a policy matches.
type PolicyKind uint8

const (
	PolicyAny         = PolicyKind(0) // all peers; the identity is 0
	PolicyIdentity    = PolicyKind(1) // peers with the identity
	PolicyCIDR        = PolicyKind(2) // peers with an address in the named CIDR
	PolicyCIDROutside = PolicyKind(3) // the same, outside the cluster only
	PolicyClass       = PolicyKind(4) // peers with an identity of the class: see [MapIdentityClasses]
)

// PolicyLevel is the specificity of an entry for the upper protocol.
type PolicyLevel uint8

const (
	PolicyAll      = PolicyLevel(0) // all protocols and ports
	PolicyProtocol = PolicyLevel(1) // one protocol, all its ports
	PolicyPort     = PolicyLevel(2) // one protocol, one port; the type of ICMP is its port

	policyLevels = 3
	// shapeRanges is the first bit of a shape for policy_ranges.
	shapeRanges = 12
	// shapeClass is the first bit of a shape for entries of [PolicyClass].
	shapeClass = 19
	// policyRangeStatic is the number of bits before the port in the length of each prefix in a [PolicyRangeKey].
	policyRangeStatic = 80
)

// ShapeLocalhost is the bit of a shape that always allows the local host, independent of entries.
const ShapeLocalhost uint32 = 1 << 16

// ShapeNested is the bit of a shape that makes entries for a CIDR match in the CIDRs inside it; ShapeStops means that entries of [PolicyStop] exist.
const (
	ShapeNested uint32 = 1 << 17
	ShapeStops  uint32 = 1 << 18
)

// ShapeClasses are the bits of a shape for entries of [PolicyClass].
const ShapeClasses uint32 = (1<<(policyLevels+1) - 1) << shapeClass

// PolicyStop is the protocol of an entry for a CIDR that ends the lookup: entries of wider CIDRs do not match in this one.
const PolicyStop uint8 = 255

// ShapeEntry returns the bit of a policy's shape for entries of this kind and level in the map policy.
func ShapeEntry(kind PolicyKind, level PolicyLevel) uint32 {
	if kind == PolicyClass {
		return 1 << (shapeClass + uint32(level))
	}
	return 1 << (uint32(kind)*policyLevels + uint32(level))
}

// ShapeRange returns the bit of a policy's shape for entries of this kind in policy_ranges.
func ShapeRange(kind PolicyKind) uint32 {
	if kind == PolicyClass {
		return 1 << (shapeClass + policyLevels)
	}
	return 1 << (shapeRanges + uint32(kind))
}

// NewPolicyKey returns the key of an entry of this level; fields that the level does not use are ignored.
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

// HostPort returns the port of the key as a number.
func (k PolicyKey) HostPort() uint16 { return wirePort(k.Port) }

// NewPolicyRangeKey returns the key of all ports whose first portBits bits (0 to 16) are equal to those of port.
func NewPolicyRangeKey(policy uint32, kind PolicyKind, identity uint32, protocol uint8, port uint16, portBits int) PolicyRangeKey {
	port &= ^uint16(0) << (16 - portBits)
	return PolicyRangeKey{Prefixlen: uint32(policyRangeStatic + portBits), Policy: policy, Identity: identity, Kind: uint8(kind),
		Protocol: protocol, Port: wirePort(port)}
}

// Ports returns the first and the last port of the key.
func (k PolicyRangeKey) Ports() (first, last uint16) {
	first = wirePort(k.Port)
	return first, first | ^uint16(0)>>min(max(int(k.Prefixlen)-policyRangeStatic, 0), 16)
}

// wirePort converts a port between a number and the field of a key in network byte order.
func wirePort(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}
