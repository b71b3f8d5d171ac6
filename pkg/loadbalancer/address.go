// Package loadbalancer defines the types that all parts of service load balancing share.
package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb/index"
)

// Protocol is a number of the IANA registry of protocol numbers.
type Protocol uint8

// Protocols of services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the name of Kubernetes, or the number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}

// ParseProtocol parses "TCP", "UDP" or "SCTP" in any case.
func ParseProtocol(name string) (Protocol, error) {
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if strings.EqualFold(name, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q: want TCP, UDP or SCTP", name)
}

// Address is the address of a service or a backend.
type Address struct {
	Addr     netip.Addr `json:"addr"` // never mapped IPv4, without a zone
	Port     uint16     `json:"port"`
	Protocol Protocol   `json:"protocol"`
}

// String returns "10.0.0.1:80/TCP" or "[fd00::1]:80/TCP".
func (a Address) String() string {
	return netip.AddrPortFrom(a.Addr, a.Port).String() + "/" + a.Protocol.String()
}

// ParseAddress is the inverse of String.
func ParseAddress(text string) (Address, error) {
	where, protocol, found := strings.Cut(text, "/")
	if !found {
		return Address{}, fmt.Errorf("address %q: want ADDRESS:PORT/PROTOCOL", text)
	}
	at, err := netip.ParseAddrPort(where)
	if err != nil {
		return Address{}, fmt.Errorf("address %q: %w", text, err)
	}
	p, err := ParseProtocol(protocol)
	if err != nil {
		return Address{}, fmt.Errorf("address %q: %w", text, err)
	}
	return Address{Addr: at.Addr().Unmap().WithZone(""), Port: at.Port(), Protocol: p}, nil
}

// Compare orders by address, port and protocol.
func (a Address) Compare(o Address) int {
	return cmp.Or(a.Addr.Compare(o.Addr), cmp.Compare(a.Port, o.Port), cmp.Compare(a.Protocol, o.Protocol))
}

// The first byte of a key.
const (
	lowIPv6  = iota // less than ::ffff:0:0
	onlyIPv4        // IPv4
	highIPv6
)

const ipv4Mapped = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" // ::ffff:0:0/96

// Key returns the address as an index key of tables: keys of one IP address are adjacent. A key is the position of the family, the address, the port and the
// protocol. The order of keys is the order of the addresses, with IPv4 at ::ffff:0:0. A key of IPv4 has 8 bytes, because there are tens of thousands of rows.
func (a Address) Key() index.Key {
	rest := [3]byte{byte(a.Port >> 8), byte(a.Port), byte(a.Protocol)}
	if addr := a.Addr.Unmap(); addr.Is4() {
		b := addr.As4()
		return append(append(append(make(index.Key, 0, 1+len(b)+len(rest)), onlyIPv4), b[:]...), rest[:]...)
	}
	b, family := a.Addr.As16(), byte(lowIPv6)
	if string(b[:len(ipv4Mapped)]) >= ipv4Mapped {
		family = highIPv6
	}
	return append(append(append(make(index.Key, 0, 1+len(b)+len(rest)), family), b[:]...), rest[:]...)
}
