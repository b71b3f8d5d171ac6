// Package natmap reads the maps of translated flows and formats their entries.
package natmap

import (
	"encoding/binary"
	"net/netip"

	"github.com/waggle-net/waggle/bpf"
)

// Map is one of the maps of translated flows.
type Map struct {
	Name string
	IPv6 bool
}

// Maps returns all maps of translated flows.
func Maps() []Map { return []Map{{Name: bpf.MapNat4}, {Name: bpf.MapNat6, IPv6: true}} }

// Of returns the map of a family.
func Of(ipv6 bool) Map {
	if ipv6 {
		return Map{Name: bpf.MapNat6, IPv6: true}
	}
	return Map{Name: bpf.MapNat4}
}

// Key is a key of a map of translated flows in the layout of the programs. Exactly one of the two forms is used.
type Key struct {
	IPv6 bool
	V4   bpf.NatKey4
	V6   bpf.NatKey6
}

// Value returns the key in the type of the family's map.
func (k *Key) Value() any {
	if k.IPv6 {
		return &k.V6
	}
	return &k.V4
}

// Tuple is a packet at a place. For ICMP both ports are the identifier.
type Tuple struct {
	Source, Destination netip.AddrPort
	Protocol            uint8
	Place               bpf.NatPlace
}

// KeyOf returns the key of a packet at a place. Both addresses must be of one family.
func KeyOf(t Tuple) Key {
	source, destination := t.Source.Addr().Unmap(), t.Destination.Addr().Unmap()
	if source.Is4() {
		return Key{V4: bpf.NatKey4{Saddr: bpf.IPv4Word(source), Daddr: bpf.IPv4Word(destination), Sport: swapped(t.Source.Port()),
			Dport: swapped(t.Destination.Port()), Protocol: t.Protocol, Place: uint8(t.Place)}}
	}
	return Key{IPv6: true, V6: bpf.NatKey6{Saddr: bpf.IPv6Bytes(source), Daddr: bpf.IPv6Bytes(destination), Sport: swapped(t.Source.Port()),
		Dport: swapped(t.Destination.Port()), Protocol: t.Protocol, Place: uint8(t.Place)}}
}

// Tuple is the inverse of [KeyOf].
func (k *Key) Tuple() Tuple {
	if k.IPv6 {
		return Tuple{Source: netip.AddrPortFrom(netip.AddrFrom16(k.V6.Saddr), swapped(k.V6.Sport)),
			Destination: netip.AddrPortFrom(netip.AddrFrom16(k.V6.Daddr), swapped(k.V6.Dport)),
			Protocol:    k.V6.Protocol, Place: bpf.NatPlace(k.V6.Place)}
	}
	return Tuple{Source: netip.AddrPortFrom(bpf.IPv4OfWord(k.V4.Saddr), swapped(k.V4.Sport)),
		Destination: netip.AddrPortFrom(bpf.IPv4OfWord(k.V4.Daddr), swapped(k.V4.Dport)),
		Protocol:    k.V4.Protocol, Place: bpf.NatPlace(k.V4.Place)}
}

// swapped converts a port between host and network byte order.
func swapped(port uint16) uint16 {
	var wire [2]byte
	binary.BigEndian.PutUint16(wire[:], port)
	return binary.NativeEndian.Uint16(wire[:])
}

// Flow is one entry of one map: a direction of a translated flow.
type Flow struct {
	Key Key
	// Reverse is the key of the reverse entry.
	Reverse Key

	Expires                    uint32 // in ticks of [bpf.CtNow]
	Flags                      uint32 // any of bpf.Nat...
	Service, Backend, Endpoint uint32 // ids, 0 for none
}

// NewFlow4 reads an IPv4 entry.
func NewFlow4(k *bpf.NatKey4, e *bpf.NatEntry4) Flow {
	return Flow{Key: Key{V4: *k}, Reverse: Key{V4: bpf.NatKey4{Saddr: e.Daddr, Daddr: e.Saddr, Sport: e.Dport, Dport: e.Sport,
		Protocol: k.Protocol, Place: uint8(e.Reverse)}}, Expires: e.Expires, Flags: uint32(e.Flags), Service: e.Service,
		Backend: e.Backend, Endpoint: e.Endpoint}
}

// NewFlow6 reads an IPv6 entry.
func NewFlow6(k *bpf.NatKey6, e *bpf.NatEntry6) Flow {
	return Flow{Key: Key{IPv6: true, V6: *k}, Reverse: Key{IPv6: true, V6: bpf.NatKey6{Saddr: e.Daddr, Daddr: e.Saddr, Sport: e.Dport,
		Dport: e.Sport, Protocol: k.Protocol, Place: uint8(e.Reverse)}}, Expires: e.Expires, Flags: uint32(e.Flags), Service: e.Service,
		Backend: e.Backend, Endpoint: e.Endpoint}
}

// Entry is the inverse of [NewFlow4] and [NewFlow6], except for the check: it returns the value for the map of the family.
func (f *Flow) Entry(check uint32) any {
	if f.Key.IPv6 {
		return &bpf.NatEntry6{Check: check, Expires: f.Expires, Saddr: f.Reverse.V6.Daddr, Daddr: f.Reverse.V6.Saddr, Sport: f.Reverse.V6.Dport,
			Dport: f.Reverse.V6.Sport, Reverse: bpf.NatPlace(f.Reverse.V6.Place), Flags: bpf.NatFlag(f.Flags), Service: f.Service, Backend: f.Backend,
			Endpoint: f.Endpoint}
	}
	return &bpf.NatEntry4{Check: check, Expires: f.Expires, Saddr: f.Reverse.V4.Daddr, Daddr: f.Reverse.V4.Saddr, Sport: f.Reverse.V4.Dport,
		Dport: f.Reverse.V4.Sport, Reverse: bpf.NatPlace(f.Reverse.V4.Place), Flags: bpf.NatFlag(f.Flags), Service: f.Service, Backend: f.Backend,
		Endpoint: f.Endpoint}
}

// Becomes returns the translated packet of the entry's key, without a place.
func (f *Flow) Becomes() Tuple {
	back := f.Reverse.Tuple()
	return Tuple{Source: back.Destination, Destination: back.Source, Protocol: back.Protocol}
}

// Reply reports whether the entry is for packets of the flow's responder.
func (f *Flow) Reply() bool { return f.Flags&uint32(bpf.NatReply) != 0 }

// Expired reports whether this direction has expired at a time of [bpf.CtNow].
func (f *Flow) Expired(now uint32) bool { return int32(f.Expires-now) <= 0 }
