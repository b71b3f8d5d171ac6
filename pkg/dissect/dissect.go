// Package dissect reads addresses, protocol and ports from the first bytes of a packet. It is for output to users: a field
// that is missing or malformed stays empty and is no error. Tests use gopacket; programs do not, because its decoders of TCP and IP return no ports and
// addresses of a malformed header or one that the record of an event cuts, and these are the packets that are dropped. It would also add 1.9 MB of decoders to
// the program.
package dissect

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Summary holds the fields that could be read.
type Summary struct {
	Proto    string     // "TCP", "UDP", "ICMPv4", "ICMPv6", "ARP", ..., or a number; empty without an Ethernet header
	Src, Dst netip.Addr // invalid when they are missing; for ARP the protocol addresses
	SrcPort  uint16     // 0 when the protocol has none, or the packet is not the first fragment
	DstPort  uint16
	Protocol uint8 // number of the IP protocol that Proto names; 0 without an IP header
	Type     uint8 // type of an ICMP message; 0 also when it is missing
}

// EtherTypes.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
	etherIPv6 = 0x86dd
)

// IP protocols, and the IPv6 extension headers that are skipped.
const (
	protoHopByHop    = 0
	protoICMPv4      = 1
	protoIGMP        = 2
	protoTCP         = 6
	protoUDP         = 17
	protoRouting     = 43
	protoFragment    = 44
	protoICMPv6      = 58
	protoDestination = 60
	protoSCTP        = 132
)

const maxExtensions = 8

// Ethernet reads a packet from its Ethernet header on.
func Ethernet(b []byte) (s Summary) {
	if len(b) < 14 {
		return s
	}
	kind, rest := binary.BigEndian.Uint16(b[12:]), b[14:]
	for kind == etherVLAN || kind == etherQinQ {
		if len(rest) < 4 {
			return Summary{Proto: "VLAN"}
		}
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch kind {
	case etherIPv4:
		return ipv4(rest)
	case etherIPv6:
		return ipv6(rest)
	case etherARP:
		return arp(rest)
	}
	return Summary{Proto: "ethertype-0x" + strconv.FormatUint(uint64(kind), 16)}
}

func arp(b []byte) Summary {
	s := Summary{Proto: "ARP"}
	if len(b) >= 28 && b[4] == 6 && b[5] == 4 {
		s.Src, s.Dst = netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	}
	return s
}

func ipv4(b []byte) Summary {
	if len(b) < 20 {
		return Summary{Proto: "IPv4"}
	}
	s := Summary{Src: netip.AddrFrom4([4]byte(b[12:])), Dst: netip.AddrFrom4([4]byte(b[16:]))}
	s.protocol(b[9])
	header := int(b[0]&0xf) * 4
	if first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0; first && header >= 20 && header <= len(b) {
		s.ports(b[9], b[header:])
	}
	return s
}

func ipv6(b []byte) Summary {
	if len(b) < 40 {
		return Summary{Proto: "IPv6"}
	}
	s := Summary{Src: netip.AddrFrom16([16]byte(b[8:])), Dst: netip.AddrFrom16([16]byte(b[24:]))}
	next, rest := b[6], b[40:]
	for range maxExtensions {
		var length int
		switch {
		case len(rest) < 8:
			s.protocol(next)
			return s
		case next == protoHopByHop || next == protoRouting || next == protoDestination:
			length = 8 + int(rest[1])*8
		case next == protoFragment:
			length = 8
			if binary.BigEndian.Uint16(rest[2:])&0xfff8 != 0 { // a later fragment has no ports
				s.protocol(rest[0])
				return s
			}
		default:
			s.protocol(next)
			s.ports(next, rest)
			return s
		}
		next, rest = rest[0], rest[min(length, len(rest)):]
	}
	s.protocol(next)
	return s
}

func (s *Summary) ports(proto byte, b []byte) {
	if (proto == protoTCP || proto == protoUDP || proto == protoSCTP) && len(b) >= 4 {
		s.SrcPort, s.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	if (proto == protoICMPv4 || proto == protoICMPv6) && len(b) > 0 {
		s.Type = b[0]
	}
}

func (s *Summary) protocol(p byte) { s.Proto, s.Protocol = Protocol(p), p }

// Protocol returns the name of an IP protocol, or its number when the name is not known.
func Protocol(p uint8) string {
	switch p {
	case protoICMPv4:
		return "ICMPv4"
	case protoIGMP:
		return "IGMP"
	case protoTCP:
		return "TCP"
	case protoUDP:
		return "UDP"
	case protoICMPv6:
		return "ICMPv6"
	case protoSCTP:
		return "SCTP"
	}
	return "protocol-" + strconv.Itoa(int(p))
}
