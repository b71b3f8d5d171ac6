package ipalloc

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// maxBitmapBits is the largest host part with a bitmap: 8 KiB.
const maxBitmapBits = 16

// bitmap holds a bit for each address; full holds a bit for each word without zeros, so a search skips 4,096 allocated addresses with one comparison.
type bitmap struct {
	prefix netip.Prefix
	size   uint32
	words  []uint64
	full   []uint64
}

func newBitmap(prefix netip.Prefix) *bitmap {
	size := uint32(1) << hostBits(prefix)
	words := (size + 63) / 64
	m := &bitmap{prefix: prefix, size: size, words: make([]uint64, words), full: make([]uint64, (words+63)/64)}
	// Bits beyond the end count as allocated, in both levels.
	for i := size; i < words*64; i++ {
		m.words[i/64] |= 1 << (i % 64)
	}
	for i := words; i < uint32(len(m.full))*64; i++ {
		m.full[i/64] |= 1 << (i % 64)
	}
	return m
}

func (m *bitmap) offset(addr netip.Addr) uint32 {
	b := addr.As16()
	return uint32(binary.BigEndian.Uint16(b[14:])) & (m.size - 1)
}

func (m *bitmap) addr(offset uint32) netip.Addr {
	return withHost(m.prefix, func(i int) byte { return byte(offset >> (8 * i)) })
}

func (m *bitmap) has(addr netip.Addr) bool {
	i := m.offset(addr)
	return m.words[i/64]&(1<<(i%64)) != 0
}

func (m *bitmap) add(addr netip.Addr) {
	i := m.offset(addr)
	w := i / 64
	m.words[w] |= 1 << (i % 64)
	if ^m.words[w] == 0 {
		m.full[w/64] |= 1 << (w % 64)
	}
}

func (m *bitmap) remove(addr netip.Addr) {
	i := m.offset(addr)
	w := i / 64
	m.words[w] &^= 1 << (i % 64)
	m.full[w/64] &^= 1 << (w % 64)
}

func (m *bitmap) nextFree(from netip.Addr) netip.Addr {
	start := m.offset(from)
	if free := ^m.words[start/64] >> (start % 64); free != 0 {
		return m.addr(start + uint32(bits.TrailingZeros64(free)))
	}
	w := m.nextWord(start/64 + 1)
	return m.addr(w*64 + uint32(bits.TrailingZeros64(^m.words[w])))
}

// nextWord returns the first word at or after start that contains a zero, with wrap-around; such a word must exist.
func (m *bitmap) nextWord(start uint32) uint32 {
	if start >= uint32(len(m.words)) {
		start = 0
	}
	group := start / 64
	if free := ^m.full[group] >> (start % 64); free != 0 {
		return start + uint32(bits.TrailingZeros64(free))
	}
	for {
		group = (group + 1) % uint32(len(m.full))
		if free := ^m.full[group]; free != 0 {
			return group*64 + uint32(bits.TrailingZeros64(free))
		}
	}
}

// sparse holds the allocated addresses of a large prefix.
type sparse struct {
	prefix netip.Prefix
	taken  map[netip.Addr]struct{}
}

func (s *sparse) has(addr netip.Addr) bool { _, ok := s.taken[addr]; return ok }
func (s *sparse) add(addr netip.Addr)      { s.taken[addr] = struct{}{} }
func (s *sparse) remove(addr netip.Addr)   { delete(s.taken, addr) }

func (s *sparse) nextFree(from netip.Addr) netip.Addr {
	for s.has(from) {
		from = following(s.prefix, from)
	}
	return from
}
