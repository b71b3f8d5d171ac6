// Package cidrpool finds free subnets of one size in a list of CIDRs, and prefixes that overlap. It keeps no state: the taken
// prefixes are an argument.
package cidrpool

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
)

// The default pools. They are not defaults of the flags, because an agent must distinguish a pool that is configured.
const (
	DefaultIPv4 = "10.0.0.0/8"
	DefaultIPv6 = "fd00::/104"
)

// Pool is a list of CIDRs of one family that is divided into subnets of one size. It is immutable.
type Pool struct {
	cidrs []netip.Prefix
	size  int // prefix length of the subnets
}

// maxBits limits the number of subnets of a CIDR to 2^maxBits, so that a uint64 can count them.
const maxBits = 62

// New checks that the CIDRs are of one family, do not overlap and can be divided. [Pool.Free] uses them in this order.
func New(cidrs []netip.Prefix, size int) (Pool, error) {
	if len(cidrs) == 0 {
		return Pool{}, errors.New("no CIDR is configured")
	}
	p := Pool{size: size}
	for _, c := range cidrs {
		if !c.IsValid() || c.Addr().Is4In6() {
			return Pool{}, fmt.Errorf("%s: not a CIDR such as 10.0.0.0/8", c)
		}
		c = c.Masked()
		switch {
		case c.Addr().BitLen() != cidrs[0].Addr().BitLen():
			return Pool{}, fmt.Errorf("%s and %s are of different families", cidrs[0], c)
		case size < c.Bits() || size > c.Addr().BitLen():
			return Pool{}, fmt.Errorf("%s cannot be split into subnets of length %d", c, size)
		case size-c.Bits() > maxBits:
			return Pool{}, fmt.Errorf("%s has too many subnets of length %d: use a length of at most %d", c, size, c.Bits()+maxBits)
		}
		if i := slices.IndexFunc(p.cidrs, c.Overlaps); i >= 0 {
			return Pool{}, fmt.Errorf("%s and %s overlap", p.cidrs[i], c)
		}
		p.cidrs = append(p.cidrs, c)
	}
	return p, nil
}

// Parse returns the CIDRs of a flag. The length in bits of their addresses is 32 or 128.
func Parse(texts []string, bits int) (cidrs []netip.Prefix, err error) {
	for _, text := range texts {
		cidr, err := netip.ParsePrefix(text)
		if err != nil || cidr.Addr().BitLen() != bits {
			return nil, fmt.Errorf("%q is not a CIDR of this family", text)
		}
		cidrs = append(cidrs, cidr)
	}
	return cidrs, nil
}

// CIDRs returns the CIDRs of the pool. The caller must not change them.
func (p Pool) CIDRs() []netip.Prefix { return p.cidrs }

// Size returns the prefix length of the subnets.
func (p Pool) Size() int { return p.size }

// Contains reports whether one of the CIDRs contains the whole prefix.
func (p Pool) Contains(prefix netip.Prefix) bool {
	return slices.ContainsFunc(p.cidrs, func(c netip.Prefix) bool { return c.Bits() <= prefix.Bits() && c.Overlaps(prefix) })
}

// Total returns the number of subnets, or the highest uint64 if there are more.
func (p Pool) Total() uint64 {
	total := uint64(0)
	for _, c := range p.cidrs {
		sum, carry := bits.Add64(total, 1<<(p.size-c.Bits()), 0)
		if carry > 0 {
			return ^uint64(0)
		}
		total = sum
	}
	return total
}

// Free yields the subnets that overlap no prefix in taken, in the order of the CIDRs and then the lowest first. taken may
// hold any prefixes, in any order. The first subnet costs a sort of taken; each further one costs the taken prefixes it skips.
func (p Pool) Free(taken []netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		sorted := outermost(taken)
		for _, c := range p.cidrs {
			if !p.freeIn(c, sorted, yield) {
				return
			}
		}
	}
}

// freeIn yields the free subnets of one CIDR. It reports whether the consumer wants more.
func (p Pool) freeIn(c netip.Prefix, sorted []netip.Prefix, yield func(netip.Prefix) bool) bool {
	// The first prefix that can overlap c is the last one that begins at or before its address.
	i, _ := slices.BinarySearchFunc(sorted, c.Addr(), func(t netip.Prefix, a netip.Addr) int { return t.Addr().Compare(a) })
	i = max(i-1, 0)
	for at := c.Addr(); at.IsValid() && c.Contains(at); {
		subnet := netip.PrefixFrom(at, p.size)
		for i < len(sorted) && last(sorted[i]).Less(at) {
			i++
		}
		if i < len(sorted) && sorted[i].Overlaps(subnet) {
			end := last(subnet)
			if taken := last(sorted[i]); end.Less(taken) {
				end = taken
			}
			at = end.Next()
			continue
		}
		if !yield(subnet) {
			return false
		}
		at = last(subnet).Next()
	}
	return true
}

// outermost sorts prefixes by address and removes invalid prefixes and prefixes inside another one.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			sorted = append(sorted, p.Masked())
		}
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	kept := sorted[:0]
	for _, p := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// last returns the highest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	raw := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// Overlaps returns, for each index of a prefix that overlaps another one, the index of such a prefix. Invalid prefixes
// overlap no prefix.
func Overlaps(prefixes []netip.Prefix) map[int]int {
	order := make([]int, 0, len(prefixes))
	for i, p := range prefixes {
		if p.IsValid() {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return prefixes[a].Masked().Compare(prefixes[b].Masked()) })
	out := map[int]int{}
	cover := -1 // prefixes nest or are disjoint, so only the last prefix outside all others can overlap
	for _, i := range order {
		if cover < 0 || !prefixes[cover].Overlaps(prefixes[i]) {
			cover = i
			continue
		}
		out[i] = cover
		if _, found := out[cover]; !found {
			out[cover] = i
		}
	}
	return out
}
