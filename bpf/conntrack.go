package bpf

import (
	"net/netip"
	"time"
)

// Flags of a [CtEntry].
const (
	CtInitiatorSecond = podEgressCtFlagCT_INITIATOR_SECOND // the initiator is the second side of the key
	CtViaStack        = podEgressCtFlagCT_VIA_STACK        // the initiator or the responder is behind the node's stack
	CtInitiatorFin    = podEgressCtFlagCT_INITIATOR_FIN    // TCP: the initiator sent FIN
	CtResponderFin    = podEgressCtFlagCT_RESPONDER_FIN    // TCP: the responder sent FIN
	CtInitiatorReset  = podEgressCtFlagCT_INITIATOR_RESET  // TCP: the initiator sent RST
	CtResponderReset  = podEgressCtFlagCT_RESPONDER_RESET  // TCP: the responder sent RST
	CtEstablished     = podEgressCtFlagCT_ESTABLISHED      // TCP: one side sent a segment without SYN
	CtReplied         = podEgressCtFlagCT_REPLIED          // the responder sent a packet other than a reset
	CtAudited         = podEgressCtFlagCT_AUDITED          // the policies in audit mode would have denied the flow
	CtByTunnel        = podEgressCtFlagCT_BY_TUNNEL        // the peer is another node and uses the tunnel in both directions
	CtByVNI           = podEgressCtFlagCT_BY_VNI           // the identity of the peer is the VNI of its packets
	CtTranslated      = podEgressCtFlagCT_TRANSLATED       // a service or the node's address replaces an address of the flow
)

// CtPackets returns the number of packets of a flow; bits 48 to 63 of the field are reserved.
func CtPackets(e *CtEntry) uint64 { return e.Packets & (1<<48 - 1) }

// ctTickShift converts nanoseconds to ticks, the time unit of conntrack.
const ctTickShift = 30

// CtTicks converts a duration to ticks of about 1.07 s, rounded up.
func CtTicks(d time.Duration) uint32 {
	return uint32((d + 1<<ctTickShift - 1) >> ctTickShift)
}

// CtDuration is the inverse of [CtTicks].
func CtDuration(ticks uint32) time.Duration { return time.Duration(ticks) << ctTickShift }

// CtExpired reports whether a flow has expired at a time of [CtNow].
func CtExpired(e *CtEntry, now uint32) bool { return int32(e.Expires-now) <= 0 }

// CtFlow is a flow in the direction from its initiator to its responder. For ICMP both ports are the identifier.
type CtFlow struct {
	Initiator, Responder netip.AddrPort
	Protocol             uint8
	ICMPType             uint8 // of the request
}

// NewCtFlow4 returns the flow of an IPv4 key and entry, with the initiator first.
func NewCtFlow4(k *CtKey4, e *CtEntry) CtFlow {
	return newCtFlow([2]netip.Addr{IPv4OfWord(k.Addr[0]), IPv4OfWord(k.Addr[1])}, k.Port, k.Protocol, k.Type, e)
}

// NewCtFlow6 is [NewCtFlow4] for IPv6.
func NewCtFlow6(k *CtKey6, e *CtEntry) CtFlow {
	return newCtFlow([2]netip.Addr{netip.AddrFrom16(k.Addr[0]), netip.AddrFrom16(k.Addr[1])}, k.Port,
		k.Protocol, k.Type, e)
}

func newCtFlow(addrs [2]netip.Addr, ports [2]uint16, protocol, icmpType uint8, e *CtEntry) CtFlow {
	initiator := 0
	if e.Flags&CtInitiatorSecond != 0 {
		initiator = 1
	}
	side := func(i int) netip.AddrPort { return netip.AddrPortFrom(addrs[i], wirePort(ports[i])) }
	return CtFlow{Initiator: side(initiator), Responder: side(1 - initiator), Protocol: protocol, ICMPType: icmpType}
}
