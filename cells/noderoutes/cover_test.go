package noderoutes

import (
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

// The cover of random ranges holds the same addresses, and no two of its prefixes could be one.
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
