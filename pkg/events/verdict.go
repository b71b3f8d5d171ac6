package events

import (
	"encoding/binary"
	"strconv"
)

// Verdict says what the policy of an endpoint decided about the first packet of a flow.
type Verdict struct {
	Header                // Endpoint is the one whose policy was asked
	RemoteIdentity uint32 // of the other side
	Code           int32  // 0 allows, a negative [Reason] denies, a positive number is the port of a proxy, which we never have
	DstPort        uint16 // of the connection; for ICMP the type of the message; 0 when the protocol has none
	Protocol       uint8  // of IP
	Egress         bool   // the endpoint is the one who connects
	IPv6           bool
	Match          Match
	// Audited means that only policies in audit mode decided so: the packet passed, and would be dropped if they counted.
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

// Direction is "ingress" or "egress", as the endpoint sees it.
func (v *Verdict) Direction() string {
	if v.Egress {
		return "egress"
	}
	return "ingress"
}

// Action is "allow", "deny" or "audit".
func (v *Verdict) Action() string {
	switch {
	case v.Audited:
		return "audit"
	case v.Code < 0:
		return "deny"
	}
	return "allow"
}

// Reason says why a packet was denied; [Forwarded] when it was not.
func (v *Verdict) Reason() Reason {
	if v.Code >= 0 || v.Code < -255 {
		return Forwarded
	}
	return Reason(-v.Code)
}

// Match is how much of a flow the deciding entry named, by Cilium's numbers.
type Match uint8

// Names of matches. L3 stands for a peer, L4 for a port with its protocol.
var matchTexts = [...]string{"none", "L3-only", "L3-L4", "L4-only", "all", "L3-proto", "proto-only"}

// String names the match as Cilium does.
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
