// Package ipalloc remembers which addresses of a prefix are taken and finds free ones.
//
// A prefix of up to 65,536 addresses is a bitmap, so that a free address is found at once even when only one is left.
// A larger one is a set of the taken addresses: a node never has more than a few thousand pods, so a guess almost never
// meets a taken address, and a /64 costs no more memory than the addresses that are in use.
//
// An [Allocator] has no lock; its owner has one.
package ipalloc

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
)

// Strategy says which free address is next.
type Strategy string

// The strategies. Random makes it unlikely that an address is soon used again; Sequential goes round the prefix.
const (
	Random     Strategy = "random"
	Sequential Strategy = "sequential"
)

// ParseStrategy reads a strategy as written in a flag.
func ParseStrategy(s string) (Strategy, error) {
	switch strategy := Strategy(s); strategy {
	case Random, Sequential:
		return strategy, nil
	}
	return "", fmt.Errorf("unknown strategy %q: use %q or %q", s, Random, Sequential)
}

// set is one of the two representations. Addresses given to it are inside its prefix.
type set interface {
	has(netip.Addr) bool
	add(netip.Addr)
	remove(netip.Addr)
	// nextFree finds the first free address at or after from, going round; one exists.
	nextFree(from netip.Addr) netip.Addr
}

// Allocator is a prefix and its taken addresses.
type Allocator struct {
	prefix   netip.Prefix
	strategy Strategy
	rand     *rand.Rand
	taken    set
	used     uint64
	cursor   netip.Addr // where Sequential goes on
}

// New makes an allocator with nothing taken. The generator decides what Random gives, so that a seed repeats it.
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

// Prefix is what the allocator was made for.
func (a *Allocator) Prefix() netip.Prefix { return a.prefix }

// Used counts the taken addresses.
func (a *Allocator) Used() uint64 { return a.used }

// Size counts all addresses of the prefix; 2^64 and more are given as the largest number.
func (a *Allocator) Size() uint64 { return Size(a.prefix) }

// Has tells whether addr is taken.
func (a *Allocator) Has(addr netip.Addr) bool { return a.prefix.Contains(addr) && a.taken.has(addr) }

// Take takes addr. It is false when addr is taken already or not in the prefix.
func (a *Allocator) Take(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) || a.taken.has(addr) {
		return false
	}
	a.taken.add(addr)
	a.used++
	return true
}

// Free gives addr back. It is false when addr was not taken.
func (a *Allocator) Free(addr netip.Addr) bool {
	if !a.Has(addr) {
		return false
	}
	a.taken.remove(addr)
	a.used--
	return true
}

// guesses bounds how often Random guesses before it goes on from its last guess to the next free address. After eight
// guesses that is reached once in 256 times when half of the prefix is taken.
const guesses = 8

// Next takes a free address. It is false when there is none.
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

// Size counts the addresses of a prefix; 2^64 and more are given as the largest number.
func Size(prefix netip.Prefix) uint64 {
	if bits := hostBits(prefix); bits < 64 {
		return 1 << bits
	}
	return math.MaxUint64
}

// Last is the highest address of a prefix.
func Last(prefix netip.Prefix) netip.Addr {
	return withHost(prefix, func(i int) byte { return 0xff })
}

func hostBits(prefix netip.Prefix) int { return prefix.Addr().BitLen() - prefix.Bits() }

// following is the address after addr, going round at the end of the prefix.
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

// withHost fills the host part of a masked prefix; octet gives the bytes counted from the last one.
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
