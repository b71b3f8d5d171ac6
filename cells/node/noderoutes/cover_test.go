package noderoutes

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/testseed"
)

func TestCover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ranges, want []string }{
		"nothing":                  {nil, nil},
		"one":                      {[]string{"10.0.1.0/24"}, []string{"10.0.1.0/24"}},
		"siblings":                 {[]string{"10.0.1.0/24", "10.0.0.0/24"}, []string{"10.0.0.0/23"}},
		"neighbours, no siblings":  {[]string{"10.0.1.0/24", "10.0.2.0/24"}, []string{"10.0.1.0/24", "10.0.2.0/24"}},
		"siblings of siblings":     {[]string{"10.0.3.0/24", "10.0.0.0/24", "10.0.2.0/24", "10.0.1.0/24"}, []string{"10.0.0.0/22"}},
		"one inside of another":    {[]string{"10.0.1.0/24", "10.0.0.0/16"}, []string{"10.0.0.0/16"}},
		"the same twice":           {[]string{"10.0.1.0/24", "10.0.1.0/24"}, []string{"10.0.1.0/24"}},
		"everything":               {[]string{"128.0.0.0/1", "0.0.0.0/1"}, []string{"0.0.0.0/0"}},
		"families":                 {[]string{"fd00::/64", "10.0.0.0/24", "fd00:0:0:1::/64"}, []string{"10.0.0.0/24", "fd00::/63"}},
		"a gap for this node":      {[]string{"10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/24"}, []string{"10.0.0.0/24", "10.0.2.0/23"}},
		"other lengths of one end": {[]string{"10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24"}, []string{"10.0.0.0/23"}},
	} {
		var got []string
		for _, p := range cover(prefixes(c.ranges)) {
			got = append(got, p.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func prefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// The cover of random ranges contains exactly their addresses, and no two of its prefixes can be merged.
func TestCover_IsExactAndMinimal(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	for range 300 {
		var ranges []netip.Prefix
		for range random.IntN(40) {
			p, _ := netip.AddrFrom4([4]byte{10, 0, 0, byte(random.UintN(256))}).Prefix(24 + random.IntN(9))
			ranges = append(ranges, p)
		}
		got := cover(ranges)
		holds := func(all []netip.Prefix, addr netip.Addr) bool {
			return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
		}
		for last := range 256 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(last)})
			if holds(got, addr) != holds(ranges, addr) {
				t.Fatalf("the cover %v of %v differs in %s", got, ranges, addr)
			}
		}
		for i, p := range got {
			for _, q := range got[i+1:] {
				if p.Overlaps(q) || p.Bits() == q.Bits() && netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked().Contains(q.Addr()) {
					t.Fatalf("%s and %s of the cover of %v could be one", p, q, ranges)
				}
			}
		}
	}
}

// TestCoverage_AgreesWithTheCoverOfAllRanges adds and removes random ranges, some of them several times.
func TestCoverage_AgreesWithTheCoverOfAllRanges(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	var c coverage
	var ranges []netip.Prefix
	have, most := map[netip.Prefix]bool{}, 0
	changed := func(p netip.Prefix) {
		if have[p] = c.has(p); !have[p] {
			delete(have, p)
		}
	}
	for range 20_000 {
		if len(ranges) > 0 && random.IntN(40) < len(ranges) {
			at := random.IntN(len(ranges))
			c.remove(ranges[at], changed)
			ranges = slices.Delete(ranges, at, at+1)
		} else {
			p, _ := netip.AddrFrom4([4]byte{10, 0, 0, byte(random.UintN(256))}).Prefix(24 + random.IntN(9))
			if random.IntN(4) == 0 {
				p, _ = netip.AddrFrom16([16]byte{0xfd, 7: byte(random.UintN(8))}).Prefix(61 + random.IntN(4))
			}
			c.add(p, changed)
			ranges = append(ranges, p)
		}
		want := cover(ranges)
		got := slices.SortedFunc(maps.Keys(have), netip.Prefix.Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("the cover of %v is %v, want %v", ranges, got, want)
		}
		var all []netip.Prefix
		for p := range c.cover.AllSorted() {
			all = append(all, p)
		}
		if !slices.Equal(all, want) {
			t.Fatalf("%v was told of the cover %v", got, all)
		}
		most = max(most, len(want))
	}
	if most < 10 {
		t.Errorf("the largest cover has %d prefixes", most)
	}
}
