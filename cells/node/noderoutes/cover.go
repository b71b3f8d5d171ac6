package noderoutes

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// coverage maintains the cover of a changing set of ranges. The cost of a change depends on the prefix length and on the number of ranges inside the range, but
// not on the number of other ranges. The zero value is empty.
type coverage struct {
	given bart.Table[int]      // number of adds minus removes, by range
	cover bart.Table[struct{}] // result of [cover] for the ranges
}

// add adds a range, and calls changed for each prefix that is added to or removed from the cover.
func (c *coverage) add(p netip.Prefix, changed func(netip.Prefix)) {
	times, _ := c.given.Get(p)
	c.given.Insert(p, times+1)
	if _, covered := c.cover.LookupPrefix(p); times > 0 || covered {
		return
	}
	var inside []netip.Prefix
	for q := range c.cover.Subnets(p) {
		inside = append(inside, q)
	}
	for _, q := range inside {
		c.drop(q, changed)
	}
	for p.Bits() > 0 {
		parent := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
		other, _ := halves(parent)
		if other == p {
			_, other = halves(parent)
		}
		if _, found := c.cover.Get(other); !found {
			break
		}
		c.drop(other, changed)
		p = parent
	}
	c.take(p, changed)
}

// remove reverts one add of a range, and calls changed for each prefix that is added to or removed from the cover.
func (c *coverage) remove(p netip.Prefix, changed func(netip.Prefix)) {
	times, _ := c.given.Get(p)
	if times > 1 {
		c.given.Insert(p, times-1)
		return
	}
	c.given.Delete(p)
	if _, contained := c.given.LookupPrefix(p); contained {
		return
	}
	var inside []netip.Prefix
	for q := range c.given.Subnets(p) {
		inside = append(inside, q)
	}
	if inside = cover(inside); slices.Equal(inside, []netip.Prefix{p}) {
		return
	}
	at, _, _ := c.cover.LookupPrefixLPM(p)
	c.drop(at, changed)
	for at != p { // no range contains p, so the other halves are covered by ranges inside them
		low, high := halves(at)
		if !low.Contains(p.Addr()) {
			low, high = high, low
		}
		c.take(high, changed)
		at = low
	}
	for _, q := range inside {
		c.take(q, changed)
	}
}

// has reports whether the cover contains this prefix itself.
func (c *coverage) has(p netip.Prefix) bool {
	_, found := c.cover.Get(p)
	return found
}

func (c *coverage) take(p netip.Prefix, changed func(netip.Prefix)) {
	c.cover.Insert(p, struct{}{})
	changed(p)
}

func (c *coverage) drop(p netip.Prefix, changed func(netip.Prefix)) {
	c.cover.Delete(p)
	changed(p)
}

// halves returns the two prefixes that a masked prefix consists of.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	addr, _ := netip.AddrFromSlice(bytes) // cannot fail: the length is unchanged
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(addr, p.Bits()+1)
}

// cover returns the smallest sorted list of prefixes that contains exactly the addresses of the ranges.
func cover(ranges []netip.Prefix) (out []netip.Prefix) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range ranges {
		if last := len(out) - 1; last >= 0 && out[last].Overlaps(p) {
			continue // out[last] sorts before p, so it contains p
		}
		for out = append(out, p); len(out) > 1; {
			a, b := out[len(out)-2], out[len(out)-1]
			parent := netip.PrefixFrom(b.Addr(), b.Bits()-1).Masked()
			if a.Bits() != b.Bits() || b.Bits() == 0 || netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked() != parent {
				break
			}
			out = append(out[:len(out)-2], parent)
		}
	}
	return out
}
