package events

import (
	"encoding/binary"
	"strconv"
)

// Verdict is the verdict of an endpoint's policy on a flow: on its first packet, or on a later packet that is denied.
type Verdict struct {
	Header                // Endpoint is the endpoint whose policy was evaluated
	RemoteIdentity uint32 // identity of the peer
	Code           int32  // 0 allows, a negative [Reason] denies, a positive number is the port of a proxy, which Waggle does not have
	DstPort        uint16 // destination port of the connection; for ICMP the type of the message; 0 when the protocol has no ports
	Protocol       uint8  // number of the IP protocol
	Egress         bool   // the endpoint is the initiator
	IPv6           bool
	Match          Match
	// Audited means that only policies in audit mode deny the packet: it was forwarded, and would be dropped without audit mode.
	Audited bool
}

const (
	verdictDirection  = 3 // bits of the flags
	verdictEgress     = 2
	verdictIPv6       = 1 << 2
	verdictMatchShift = 3
	verdictMatchMask  = 7
	verdictAudited    = 1 << 6
	verdictRemoteAt   = 16
	verdictCodeAt     = 20
	verdictDstPortAt  = 24
	verdictProtocolAt = 26
	verdictFlagsAt    = 27
)

// Direction returns "ingress" or "egress", as the endpoint sees the flow.
func (v *Verdict) Direction() string {
	if v.Egress {
		return "egress"
	}
	return "ingress"
}

// Action returns "allow", "deny" or "audit".
func (v *Verdict) Action() string {
	switch {
	case v.Audited:
		return "audit"
	case v.Code < 0:
		return "deny"
	}
	return "allow"
}

// Reason returns the reason of a denial; [Forwarded] for an allowed packet.
func (v *Verdict) Reason() Reason {
	if v.Code >= 0 || v.Code < -255 {
		return Forwarded
	}
	return Reason(-v.Code)
}

// Match is the specificity of the deciding entry, in Cilium's numbers.
type Match uint8

// Names of matches. L3 means a peer, L4 a port with its protocol.
var matchTexts = [...]string{"none", "L3-only", "L3-L4", "L4-only", "all", "L3-proto", "proto-only"}

// String returns Cilium's name of the match.
func (m Match) String() string {
	if int(m) < len(matchTexts) {
		return matchTexts[m]
	}
	return strconv.Itoa(int(m))
}

func decodeVerdict(b []byte, length int) (Event, error) {
	header, err := decodeHeader(b, length)
	if err != nil {
		return nil, err
	}
	flags := b[verdictFlagsAt]
	return &Verdict{
		Header:         header,
		RemoteIdentity: binary.NativeEndian.Uint32(b[verdictRemoteAt:]),
		Code:           int32(binary.NativeEndian.Uint32(b[verdictCodeAt:])),
		DstPort:        binary.NativeEndian.Uint16(b[verdictDstPortAt:]),
		Protocol:       b[verdictProtocolAt],
		Egress:         flags&verdictDirection == verdictEgress,
		IPv6:           flags&verdictIPv6 != 0,
		Match:          Match(flags >> verdictMatchShift & verdictMatchMask),
		Audited:        flags&verdictAudited != 0,
	}, nil
}
