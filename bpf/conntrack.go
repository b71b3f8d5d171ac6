package bpf

import (
	"net/netip"
	"time"
)

// Flags of a [CtEntry]. The opener sent the first packet, the target was the first to get it.
const (
	CtOpenerSecond = podEgressCtFlagCT_OPENER_SECOND // the opener is the second side of the key
	CtViaStack     = podEgressCtFlagCT_VIA_STACK     // one of them is behind the node's stack
	CtOpenerFin    = podEgressCtFlagCT_OPENER_FIN    // TCP: the opener will send no more
	CtTargetFin    = podEgressCtFlagCT_TARGET_FIN    // TCP: the target will send no more
	CtOpenerReset  = podEgressCtFlagCT_OPENER_RESET  // TCP: the opener broke the connection
	CtTargetReset  = podEgressCtFlagCT_TARGET_RESET  // TCP: the target broke the connection
	CtStands       = podEgressCtFlagCT_STANDS        // TCP: one of them sent a segment without SYN
	CtReplied      = podEgressCtFlagCT_REPLIED       // the target sent something other than a reset
	CtAudited      = podEgressCtFlagCT_AUDITED       // the policies under audit would have denied it
	CtByTunnel     = podEgressCtFlagCT_BY_TUNNEL     // the peer is another node, which sends and is answered through the tunnel
	CtByVNI        = podEgressCtFlagCT_BY_VNI        // the identity of the peer is the VNI of its packets
)

// CtPackets is the number of packets of a flow; bits 48 to 63 of the field are reserved.
func CtPackets(e *CtEntry) uint64 { return e.Packets & (1<<48 - 1) }

// ctTickShift makes ticks, in which conntrack keeps times, of nanoseconds.
const ctTickShift = 30

// CtTicks is a duration in ticks of about 1.07 s, rounded up.
func CtTicks(d time.Duration) uint32 {
	return uint32((d + 1<<ctTickShift - 1) >> ctTickShift)
}

// CtDuration is the inverse of [CtTicks].
func CtDuration(ticks uint32) time.Duration { return time.Duration(ticks) << ctTickShift }

// CtExpired tells whether a flow has ended at a time of [CtNow].
func CtExpired(e *CtEntry, now uint32) bool { return int32(e.Expires-now) <= 0 }

// CtFlow is a flow as people know it: from its opener to its target. The ports of ICMP are its identifier.
type CtFlow struct {
	Opener, Target netip.AddrPort
	Protocol       uint8
	ICMPType       uint8 // of the question
}

// NewCtFlow4 turns key and entry of an IPv4 flow around, so that the opener comes first.
func NewCtFlow4(k *CtKey4, e *CtEntry) CtFlow {
	return newCtFlow([2]netip.Addr{IPv4OfWord(k.Addr[0]), IPv4OfWord(k.Addr[1])}, k.Port, k.Protocol, k.Type, e)
}

// NewCtFlow6 is [NewCtFlow4] for IPv6.
func NewCtFlow6(k *CtKey6, e *CtEntry) CtFlow {
	return newCtFlow([2]netip.Addr{netip.AddrFrom16(k.Addr[0]), netip.AddrFrom16(k.Addr[1])}, k.Port,
		k.Protocol, k.Type, e)
}

func newCtFlow(addrs [2]netip.Addr, ports [2]uint16, protocol, icmpType uint8, e *CtEntry) CtFlow {
	opener := 0
	if e.Flags&CtOpenerSecond != 0 {
		opener = 1
	}
	side := func(i int) netip.AddrPort { return netip.AddrPortFrom(addrs[i], wirePort(ports[i])) }
	return CtFlow{Opener: side(opener), Target: side(1 - opener), Protocol: protocol, ICMPType: icmpType}
}
