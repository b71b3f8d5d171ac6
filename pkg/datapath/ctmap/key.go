package ctmap

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// KeyOf returns the key of a flow in the layout of the programs, and reports whether the initiator is the second side of the key.
// The addresses must be of one family; for ICMP both ports are the identifier.
func KeyOf(t bpf.CtFlow) (key Key, initiatorSecond bool) {
	from, to := sideOf(t.Initiator.Addr().Unmap().AsSlice(), t.Initiator.Port()), sideOf(t.Responder.Addr().Unmap().AsSlice(), t.Responder.Port())
	if initiatorSecond = to.before(from); initiatorSecond {
		from, to = to, from
	}
	requester := uint8(0)
	if t.Protocol == unix.IPPROTO_ICMP || t.Protocol == unix.IPPROTO_ICMPV6 {
		requester = 1
		if initiatorSecond {
			requester = 2
		}
	}
	ports := [2]uint16{from.port, to.port}
	if len(from.addr) == 4 {
		key.V4 = bpf.CtKey4{Addr: [2]uint32{binary.NativeEndian.Uint32(from.addr), binary.NativeEndian.Uint32(to.addr)}, Port: ports,
			Protocol: t.Protocol, Requester: requester, Type: t.ICMPType}
		return key, initiatorSecond
	}
	key.IPv6 = true
	key.V6 = bpf.CtKey6{Addr: [2][16]uint8{[16]byte(from.addr), [16]byte(to.addr)}, Port: ports,
		Protocol: t.Protocol, Requester: requester, Type: t.ICMPType}
	return key, initiatorSecond
}

// side is one end of a flow, with its port in network byte order.
type side struct {
	addr []byte
	port uint16
}

func sideOf(addr []byte, port uint16) side {
	var wire [2]byte
	binary.BigEndian.PutUint16(wire[:], port)
	return side{addr, binary.NativeEndian.Uint16(wire[:])}
}

// before reports whether the programs sort s before o: they compare addresses as native integers of 32 or 64 bits, then ports.
func (s side) before(o side) bool {
	if len(s.addr) == 4 {
		a, b := binary.NativeEndian.Uint32(s.addr), binary.NativeEndian.Uint32(o.addr)
		return a < b || a == b && s.port < o.port
	}
	for i := 0; i < len(s.addr); i += 8 {
		a, b := binary.NativeEndian.Uint64(s.addr[i:]), binary.NativeEndian.Uint64(o.addr[i:])
		if a != b {
			return a < b
		}
	}
	return s.port < o.port
}
