package ipalloc

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/testseed"
)

// prefixes has one prefix of each shape: bitmaps smaller and larger than a word, sets, and a host part of more than 64 bits.
var prefixes = []string{
	"10.0.0.7/32", "10.0.0.6/31", "10.0.0.0/30", "10.0.1.0/26", "10.0.1.0/24", "10.1.0.0/16", "10.0.0.0/8",
	"fd00::/128", "fd00::10/124", "fd00::/112", "fd00:1::/64", "fd00::/8",
}

// TestAllocator_AgreesWithModel runs random operations and compares every result with a plain set.
func TestAllocator_AgreesWithModel(t *testing.T) {
	t.Parallel()
	for _, strategy := range []Strategy{Random, Sequential} {
		for _, text := range prefixes {
			t.Run(string(strategy)+" "+text, func(t *testing.T) {
				t.Parallel()
				generator := testseed.New(t)
				prefix := netip.MustParsePrefix(text)
				check(t, New(prefix, strategy, generator), func(n int) int { return generator.IntN(n) }, 3000)
			})
		}
	}
}

// check runs steps random operations, which choose selects, against a model.
func check(t *testing.T, a *Allocator, choose func(n int) int, steps int) {
	t.Helper()
	model := map[netip.Addr]bool{}
	var known []netip.Addr // addresses that were allocated at some time
	some := func() netip.Addr {
		if len(known) == 0 || choose(4) == 0 {
			return withHost(a.prefix, func(int) byte { return byte(choose(256)) })
		}
		return known[choose(len(known))]
	}
	for range steps {
		switch choose(4) {
		case 0, 1:
			addr, ok := a.Next()
			if want := uint64(len(model)) < a.Size(); ok != want {
				t.Fatalf("Next with %d taken: %v, want %v", len(model), ok, want)
			}
			if !ok {
				continue
			}
			if model[addr] || !a.prefix.Contains(addr) {
				t.Fatalf("Next gave %v, taken %v", addr, model[addr])
			}
			model[addr] = true
			known = append(known, addr)
		case 2:
			addr := some()
			if got := a.Take(addr); got == model[addr] {
				t.Fatalf("Take(%v) = %v, taken %v", addr, got, model[addr])
			}
			model[addr] = true
			known = append(known, addr)
		case 3:
			addr := some()
			if got := a.Free(addr); got != model[addr] {
				t.Fatalf("Free(%v) = %v, taken %v", addr, got, model[addr])
			}
			delete(model, addr)
		}
		if a.Used() != uint64(len(model)) {
			t.Fatalf("Used() = %d, want %d", a.Used(), len(model))
		}
	}
	for _, addr := range known {
		if a.Has(addr) != model[addr] {
			t.Fatalf("Has(%v) = %v", addr, a.Has(addr))
		}
	}
}

func TestAllocator_AllocatesEveryAddressOnce(t *testing.T) {
	t.Parallel()
	for _, strategy := range []Strategy{Random, Sequential} {
		for _, text := range []string{"10.0.0.7/32", "10.0.0.0/29", "10.0.1.0/24", "10.1.0.0/16", "fd00::/112"} {
			a := New(netip.MustParsePrefix(text), strategy, testseed.New(t))
			given := map[netip.Addr]bool{}
			for {
				addr, ok := a.Next()
				if !ok {
					break
				}
				given[addr] = true
			}
			if uint64(len(given)) != a.Size() {
				t.Errorf("%s %s: %d different addresses of %d", strategy, text, len(given), a.Size())
			}
		}
	}
}

func TestAllocator_SequentialWrapsAround(t *testing.T) {
	t.Parallel()
	a := New(netip.MustParsePrefix("10.0.0.0/30"), Sequential, nil)
	var got []string
	for i := range 5 {
		addr, _ := a.Next()
		got = append(got, addr.String())
		if i == 1 {
			a.Free(addr) // must not be reused before the others
		}
	}
	want := []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestAllocator_RandomSpreads(t *testing.T) {
	t.Parallel()
	a := New(netip.MustParsePrefix("10.1.0.0/16"), Random, rand.New(rand.NewPCG(1, 2)))
	quarters := map[byte]int{}
	for range 400 {
		addr, _ := a.Next()
		quarters[addr.As4()[2]/64]++
	}
	for q := range byte(4) {
		if quarters[q] < 50 {
			t.Errorf("quarter %d of the range got %d of 400 addresses", q, quarters[q])
		}
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"10.0.0.0/24": "10.0.0.255", "10.0.0.5/32": "10.0.0.5", "10.0.0.0/23": "10.0.1.255",
		"fd00::/64": "fd00::ffff:ffff:ffff:ffff", "fd00::/61": "fd00::7:ffff:ffff:ffff:ffff",
	} {
		if got := Last(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("Last(%s) = %v, want %s", prefix, got, want)
		}
	}
}

func TestTake_OtherFamily(t *testing.T) {
	t.Parallel()
	a := New(netip.MustParsePrefix("10.0.0.0/24"), Random, testseed.New(t))
	for _, addr := range []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("::ffff:10.0.0.1"), {}} {
		if a.Take(addr) || a.Has(addr) || a.Free(addr) {
			t.Errorf("%v was accepted", addr)
		}
	}
}

func FuzzAllocator(f *testing.F) {
	f.Add(uint8(4), true, []byte{0, 1, 2, 3, 0, 0, 3, 3, 2, 1, 0})
	f.Fuzz(func(t *testing.T, which uint8, random bool, choices []byte) {
		strategy := Sequential
		if random {
			strategy = Random
		}
		prefix := netip.MustParsePrefix(prefixes[int(which)%len(prefixes)])
		at := 0
		choose := func(n int) int {
			if len(choices) == 0 {
				return 0
			}
			at++
			return int(choices[at%len(choices)]) % n
		}
		check(t, New(prefix, strategy, rand.New(rand.NewPCG(1, 2))), choose, min(len(choices), 500))
	})
}

func BenchmarkNextFree(b *testing.B) {
	for _, text := range []string{"10.0.1.0/24", "10.1.0.0/16", "fd00::/112", "fd00::/64"} {
		for _, full := range []bool{false, true} {
			name := text + " empty"
			if full {
				name = text + " nearly full"
			}
			a := New(netip.MustParsePrefix(text), Random, rand.New(rand.NewPCG(1, 2)))
			for full && a.Used() < min(a.Size(), 1<<16)-1 {
				a.Next()
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					addr, _ := a.Next()
					a.Free(addr)
				}
			})
		}
	}
}
