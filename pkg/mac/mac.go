// Package mac represents an Ethernet address as a small comparable value, for rows and map values.
package mac

import (
	"fmt"
	"net"
)

// Addr is a 48-bit Ethernet address in wire order. The zero value means "none" and prints as the empty string.
type Addr [6]byte

// Parse reads "aa:bb:cc:dd:ee:ff". An empty string is the zero address; EUI-64 and other lengths are errors.
func Parse(s string) (Addr, error) {
	if s == "" {
		return Addr{}, nil
	}
	hw, err := net.ParseMAC(s)
	if err != nil {
		return Addr{}, fmt.Errorf("parse MAC address %q: %w", s, err)
	}
	return FromHardwareAddr(hw)
}

// FromHardwareAddr converts an address of netlink or package net. Any length other than six bytes is an error.
func FromHardwareAddr(hw net.HardwareAddr) (Addr, error) {
	if len(hw) != 6 {
		return Addr{}, fmt.Errorf("MAC address %q: has %d bytes, want 6", hw, len(hw))
	}
	return Addr(hw), nil
}

// IsZero reports whether no address is set.
func (a Addr) IsZero() bool { return a == Addr{} }

// HardwareAddr returns a copy in the type of package net.
func (a Addr) HardwareAddr() net.HardwareAddr { return net.HardwareAddr(a[:]) }

// String returns "aa:bb:cc:dd:ee:ff", or "" for the zero address.
func (a Addr) String() string {
	if a.IsZero() {
		return ""
	}
	return a.HardwareAddr().String()
}

// MarshalText implements [encoding.TextMarshaler].
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Addr) UnmarshalText(text []byte) (err error) {
	*a, err = Parse(string(text))
	return err
}
