// Package ipalloc records the allocated addresses of a prefix and finds free ones.
//
// A prefix of up to 65,536 addresses uses a bitmap, so finding a free address is fast even when only one is left. A larger prefix uses a set of the allocated
// addresses: a node never has more than a few thousand pods, so a random address is almost always free, and a /64 needs memory only for addresses in use.
//
// An [Allocator] has no lock; its owner must serialize calls.
package ipalloc

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
)

// Strategy selects the next free address.
type Strategy string

// The strategies. Random makes early reuse of an address unlikely; Sequential cycles through the prefix.
const (
	Random     Strategy = "random"
	Sequential Strategy = "sequential"
)

// ParseStrategy parses the value of a flag.
func ParseStrategy(s string) (Strategy, error) {
	switch strategy := Strategy(s); strategy {
	case Random, Sequential:
		return strategy, nil
	}
	return "", fmt.Errorf("unknown strategy %q: use %q or %q", s, Random, Sequential)
}

// set is one of the two representations. Arguments of its methods must be inside its prefix.
type set interface {
	has(netip.Addr) bool
	add(netip.Addr)
	remove(netip.Addr)
	// nextFree returns the first free address at or after from, with wrap-around; a free address must exist.
	nextFree(from netip.Addr) netip.Addr
}

// Allocator is a prefix with its allocated addresses.
type Allocator struct {
	prefix   netip.Prefix
	strategy Strategy
	rand     *rand.Rand
	taken    set
	used     uint64
	cursor   netip.Addr // next candidate of Sequential
}

// New returns an allocator without allocated addresses. The generator determines the addresses of Random, so a seed makes them reproducible.
func New(prefix netip.Prefix, strategy Strategy, generator *rand.Rand) *Allocator {
	prefix = prefix.Masked()
	a := &Allocator{prefix: prefix, strategy: strategy, rand: generator, cursor: prefix.Addr()}
	if hostBits(prefix) <= maxBitmapBits {
		a.taken = newBitmap(prefix)
	} else {
		a.taken = &sparse{prefix: prefix, taken: map[netip.Addr]struct{}{}}
	}
	return a
}

// Prefix returns the prefix of the allocator.
func (a *Allocator) Prefix() netip.Prefix { return a.prefix }

// Used returns the number of allocated addresses.
func (a *Allocator) Used() uint64 { return a.used }

// Size returns the number of addresses of the prefix; 2^64 and more are returned as the largest number.
func (a *Allocator) Size() uint64 { return Size(a.prefix) }

// Has reports whether addr is allocated.
func (a *Allocator) Has(addr netip.Addr) bool { return a.prefix.Contains(addr) && a.taken.has(addr) }

// Take allocates addr. It returns false when addr is already allocated or not in the prefix.
func (a *Allocator) Take(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) || a.taken.has(addr) {
		return false
	}
	a.taken.add(addr)
	a.used++
	return true
}

// Free releases addr. It returns false when addr was not allocated.
func (a *Allocator) Free(addr netip.Addr) bool {
	if !a.Has(addr) {
		return false
	}
	a.taken.remove(addr)
	a.used--
	return true
}

// guesses limits the random guesses of Random before it continues from its last guess to the next free address. With half of the prefix allocated, one call
// in 256 needs more than eight guesses.
const guesses = 8

// Next allocates a free address. It returns false when there is none.
func (a *Allocator) Next() (netip.Addr, bool) {
	if a.used >= a.Size() {
		return netip.Addr{}, false
	}
	addr := a.cursor
	if a.strategy == Random {
		addr = randomIn(a.prefix, a.rand)
		for range guesses {
			if !a.taken.has(addr) {
				break
			}
			addr = randomIn(a.prefix, a.rand)
		}
	}
	addr = a.taken.nextFree(addr)
	a.cursor = following(a.prefix, addr)
	a.taken.add(addr)
	a.used++
	return addr, true
}

// Size returns the number of addresses of a prefix; 2^64 and more are returned as the largest number.
func Size(prefix netip.Prefix) uint64 {
	if bits := hostBits(prefix); bits < 64 {
		return 1 << bits
	}
	return math.MaxUint64
}

// Last returns the highest address of a prefix.
func Last(prefix netip.Prefix) netip.Addr {
	return withHost(prefix, func(i int) byte { return 0xff })
}

func hostBits(prefix netip.Prefix) int { return prefix.Addr().BitLen() - prefix.Bits() }

// following returns the address after addr, with wrap-around at the end of the prefix.
func following(prefix netip.Prefix, addr netip.Addr) netip.Addr {
	if next := addr.Next(); prefix.Contains(next) {
		return next
	}
	return prefix.Addr()
}

func randomIn(prefix netip.Prefix, generator *rand.Rand) netip.Addr {
	low, high := generator.Uint64(), uint64(0)
	if hostBits(prefix) > 64 {
		high = generator.Uint64()
	}
	return withHost(prefix, func(i int) byte { // i counts bytes from the end
		if i < 8 {
			return byte(low >> (8 * i))
		}
		return byte(high >> (8 * (i - 8)))
	})
}

// withHost fills the host part of a masked prefix; octet returns the bytes counted from the last one.
func withHost(prefix netip.Prefix, octet func(fromEnd int) byte) netip.Addr {
	b := prefix.Masked().Addr().As16()
	for i, left := 0, hostBits(prefix); left > 0; i, left = i+1, left-8 {
		mask := byte(0xff)
		if left < 8 {
			mask = 1<<left - 1
		}
		b[15-i] |= octet(i) & mask
	}
	addr := netip.AddrFrom16(b)
	if prefix.Addr().Is4() {
		return addr.Unmap()
	}
	return addr
}
