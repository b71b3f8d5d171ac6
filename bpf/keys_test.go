package bpf

import (
	"net/netip"
	"testing"
)

func TestNewAddrKey(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]AddrKey{
		"10.1.0.7":        {Addr: [16]byte{10, 1, 0, 7}, Family: 4},
		"::ffff:10.1.0.7": {Addr: [16]byte{10, 1, 0, 7}, Family: 4},
		"fd00::9":         {Addr: [16]byte{0: 0xfd, 15: 9}, Family: 6},
	} {
		addr := netip.MustParseAddr(in)
		if got := NewAddrKey(addr); got != want {
			t.Errorf("%s: %+v", in, got)
		} else if AddrOf(got) != addr.Unmap() {
			t.Errorf("%s came back as %s", in, AddrOf(got))
		}
	}
	if AddrOf(NewAddrKey(netip.Addr{})).IsValid() {
		t.Error("no address became one")
	}
}

func TestNewLpmKey(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]LpmKey{
		"10.1.2.3/24": {Prefixlen: 56, Family: 4, Addr: [16]byte{10, 1, 2}},
		"0.0.0.0/0":   {Prefixlen: 32, Family: 4},
		"fd00::1/64":  {Prefixlen: 96, Family: 6, Addr: [16]byte{0: 0xfd}},
		"::/0":        {Prefixlen: 32, Family: 6},
	} {
		prefix := netip.MustParsePrefix(in)
		if got := NewLpmKey(prefix); got != want {
			t.Errorf("%s: %+v", in, got)
		} else if PrefixOf(got) != prefix.Masked() {
			t.Errorf("%s came back as %s", in, PrefixOf(got))
		}
	}
}

func TestIPv4Word(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.1.0.7")
	if got := IPv4OfWord(IPv4Word(addr)); got != addr {
		t.Errorf("%s came back as %s", addr, got)
	}
	if IPv4Word(netip.MustParseAddr("fd00::1")) != 0 || IPv4OfWord(0).IsValid() || IPv6Bytes(addr) != [16]byte{} {
		t.Error("an address of the other family, or none, is not zero")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte{10, 1, 0, 7}, uint8(24), uint32(56), uint8(4))
	f.Add(make([]byte, 16), uint8(128), uint32(160), uint8(6))
	f.Fuzz(func(t *testing.T, b []byte, bits uint8, prefixlen uint32, family uint8) {
		// Any bytes from a map are decoded without a panic.
		var key LpmKey
		copy(key.Addr[:], b)
		key.Prefixlen, key.Family = prefixlen, family
		if p := PrefixOf(key); p.IsValid() && NewLpmKey(p).Prefixlen != prefixlen {
			t.Fatalf("%s has another length than %d", p, prefixlen)
		}
		addr, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		addr = addr.Unmap()
		if got := AddrOf(NewAddrKey(addr)); got != addr.WithZone("") {
			t.Fatalf("%s came back as %s", addr, got)
		}
		if p, err := addr.Prefix(int(bits) % (addr.BitLen() + 1)); err == nil && PrefixOf(NewLpmKey(p)) != p {
			t.Fatalf("%s came back as %s", p, PrefixOf(NewLpmKey(p)))
		}
	})
}
