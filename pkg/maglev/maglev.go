// Package maglev computes the lookup tables of Maglev (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section
// 3.4). A client that hashes to a slot reaches the same backend from every node. When a backend is removed, few clients of the other backends are reassigned.
package maglev

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Sizes returns the possible sizes of a table: primes, so that every permutation covers all slots. A table should have a hundred times as many slots as
// backends; otherwise some backends get noticeably more clients.
func Sizes() []int { return []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071} }

// CheckSize returns an error for an unsupported size.
func CheckSize(size int) error {
	if !slices.Contains(Sizes(), size) {
		texts := make([]string, len(Sizes()))
		for i, s := range Sizes() {
			texts[i] = strconv.Itoa(s)
		}
		return fmt.Errorf("%d slots: want one of %s", size, strings.Join(texts, ", "))
	}
	return nil
}

// Seed distinguishes the tables of one cluster from other clusters. It must be the same on all nodes.
type Seed [seedSize]byte

const seedSize = 12

// ParseSeed parses a seed in base64.
func ParseSeed(text string) (seed Seed, err error) {
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return seed, err
	}
	if copy(seed[:], bytes) != seedSize || len(bytes) != seedSize {
		return seed, fmt.Errorf("it has %d bytes, want %d", len(bytes), seedSize)
	}
	return seed, nil
}

// Table assigns each of size slots to a backend, as an index into names. The order of names does not affect the assignment; names must hold at least one name
// and no duplicates. size is one of [Sizes].
func Table(names []string, size int, seed Seed) []uint32 {
	order := make([]uint32, len(names))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return strings.Compare(names[a], names[b]) })

	next, skip := make([]uint32, len(names)), make([]uint32, len(names))
	for turn, i := range order {
		next[turn], skip[turn] = permutation(names[i], uint64(size), seed)
	}
	table, taken := make([]uint32, size), make([]bool, size)
	for filled := 0; ; {
		for turn, i := range order {
			slot := next[turn]
			for taken[slot] {
				slot = after(slot, skip[turn], uint32(size))
			}
			table[slot], taken[slot] = i, true
			next[turn] = after(slot, skip[turn], uint32(size))
			if filled++; filled == size {
				return table
			}
		}
	}
}

// permutation returns the first slot in the order of a backend, and the distance between its slots.
func permutation(name string, size uint64, seed Seed) (offset, skip uint32) {
	sum := sha256.Sum256(append(seed[:], name...))
	return uint32(binary.BigEndian.Uint64(sum[:8]) % size), uint32(binary.BigEndian.Uint64(sum[8:16])%(size-1)) + 1
}

func after(slot, skip, size uint32) uint32 {
	if slot += skip; slot >= size {
		slot -= size
	}
	return slot
}
