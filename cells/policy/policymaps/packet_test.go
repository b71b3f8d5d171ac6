package policymaps

import (
	"encoding/binary"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/policy"
)

func macs(pod int) (podMAC, hostMAC mac.Addr) {
	return mac.Addr{2, 0, 0, 0, 0, byte(pod)}, mac.Addr{2, 0, 0, 0, 1, byte(pod)}
}

// skb is the beginning of struct __sk_buff.
type skb struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTci, VlanProto, Priority uint32
	IngressIfindex, Ifindex                                                               uint32
}

// packet is the first packet of a connection.
type packet struct {
	from, to            mac.Addr
	source, destination netip.Addr
	protocol            uint8
	sourcePort, port    uint16 // for ICMP the identifier and the type
}

// bytes returns the frame of the packet. Fields that the programs do not read, such as checksums, are 0.
func (p *packet) bytes() []byte {
	const eth, upper = 14, 24
	b := make([]byte, 0, eth+40+upper)
	b = append(append(b, p.to[:]...), p.from[:]...)
	if p.source.Is4() {
		b = append(b, 0x08, 0x00, 0x45, 0, 0, 20+upper, 0, 1, 0, 0, 64, p.protocol, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, upper, p.protocol, 64)
	}
	b = append(append(b, p.source.AsSlice()...), p.destination.AsSlice()...)
	l4 := make([]byte, upper)
	switch p.protocol {
	case policy.ProtocolICMP, policy.ProtocolICMPv6:
		l4[0] = byte(p.port)
		binary.BigEndian.PutUint16(l4[4:], p.sourcePort)
	default:
		binary.BigEndian.PutUint16(l4, p.sourcePort)
		binary.BigEndian.PutUint16(l4[2:], p.port)
	}
	switch p.protocol {
	case policy.ProtocolTCP:
		l4[12], l4[13] = 5<<4, 2 // SYN
	case policy.ProtocolUDP:
		binary.BigEndian.PutUint16(l4[4:], upper)
	case policy.ProtocolSCTP:
		l4[12] = 1 // INIT
	}
	return append(b, l4...)
}
