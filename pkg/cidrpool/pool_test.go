package cidrpool

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestNew_Rejects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cidrs []netip.Prefix
		size  int
		want  string
	}{
		{nil, 24, "no CIDR"},
		{prefixes("10.0.0.0/8", "fd00::/104"), 24, "different families"},
		{prefixes("10.0.0.0/25"), 24, "10.0.0.0/25 cannot be split into subnets of length 24"},
		{prefixes("10.0.0.0/8"), 33, "cannot be split"},
		{prefixes("10.0.0.0/8", "10.1.0.0/16"), 24, "10.0.0.0/8 and 10.1.0.0/16 overlap"},
		{prefixes("fd00::/8"), 96, "too many subnets"},
		{prefixes("::ffff:10.0.0.0/104"), 112, "not a CIDR"},
	} {
		if _, err := New(c.cidrs, c.size); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v /%d: %v, want %s", c.cidrs, c.size, err, c.want)
		}
	}
}

func TestFree_TopOfTheAddressSpace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cidr string
		size int
	}{{"255.255.255.0/24", 26}, {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:0/112", 114}} {
		p, err := New(prefixes(c.cidr), c.size)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(p.Free(nil)); len(got) != 4 {
			t.Errorf("%s: %v", c.cidr, got)
		}
	}
}

// FuzzPool compares Pool with a model that checks each subnet against each prefix.
func FuzzPool(f *testing.F) {
	f.Add([]byte{28, 0, 16, 17, 20, 130, 30, 200, 24})
	f.Add([]byte{24, 0, 0, 255, 32, 3, 24})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 60 {
			return
		}
		size := 26 + int(data[0])%7
		p, err := New(prefixes("10.0.0.128/25", "10.0.0.0/26"), size)
		if err != nil {
			t.Fatal(err)
		}
		var taken []netip.Prefix
		for rest := data[1:]; len(rest) > 1; rest = rest[2:] {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, rest[0]}), 20+int(rest[1])%13)
			taken = append(taken, prefix)
		}
		want, total := model(p, taken)
		if got := slices.Collect(p.Free(taken)); !slices.Equal(got, want) {
			t.Errorf("free beside %v: %v, want %v", taken, got, want)
		}
		if p.Total() != total {
			t.Errorf("%d subnets, want %d", p.Total(), total)
		}
		overlaps := Overlaps(taken)
		for i, a := range taken {
			others := slices.Concat(taken[:i], taken[i+1:])
			with, found := overlaps[i]
			if found != slices.ContainsFunc(others, a.Overlaps) || found && (with == i || !a.Overlaps(taken[with])) {
				t.Errorf("%v: %d overlaps %d (%v)", taken, i, with, found)
			}
		}
	})
}

func model(p Pool, taken []netip.Prefix) (free []netip.Prefix, total uint64) {
	for _, c := range p.CIDRs() {
		for at := c.Addr(); c.Contains(at); at = at.Next() {
			subnet := netip.PrefixFrom(at, p.Size())
			if subnet.Masked() != subnet {
				continue
			}
			total++
			if !slices.ContainsFunc(taken, subnet.Overlaps) {
				free = append(free, subnet)
			}
		}
	}
	return free, total
}

// BenchmarkFree finds 5,000 free subnets among 5,000 taken ones.
func BenchmarkFree(b *testing.B) {
	p, err := New(prefixes("10.0.0.0/8"), 24)
	if err != nil {
		b.Fatal(err)
	}
	var taken []netip.Prefix
	for i := range 10000 {
		if i%2 == 0 {
			taken = append(taken, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
		}
	}
	for b.Loop() {
		n := 0
		for range p.Free(taken) {
			if n++; n == 5000 {
				break
			}
		}
	}
}
