package natmap

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// FuzzFlow checks the invariants of a pair: keys are restored from tuples, the translated packet is the reversed key of the reverse entry, and the reverse
// entry of the reverse entry is the entry itself.
func FuzzFlow(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{10, 96, 0, 1}, []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}, uint16(1234), uint16(80), uint16(8080), uint8(6))
	f.Add(append(make([]byte, 15), 1), append(make([]byte, 15), 2), append(make([]byte, 15), 1), append(make([]byte, 15), 3), uint16(1), uint16(2), uint16(3), uint8(17))
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, p, q, r uint16, protocol uint8) {
		var addrs [4]netip.Addr
		for i, bytes := range [][]byte{a, b, c, d} {
			addr, ok := netip.AddrFromSlice(bytes)
			if !ok || len(bytes) != len(a) || addr.Is4In6() || addr.Is4() && addr.IsUnspecified() {
				return // not addresses of a packet
			}
			addrs[i] = addr
		}
		from := Tuple{netip.AddrPortFrom(addrs[0], p), netip.AddrPortFrom(addrs[1], q), protocol, bpf.NatFromPod}
		back := Tuple{netip.AddrPortFrom(addrs[3], r), netip.AddrPortFrom(addrs[2], p), protocol, bpf.NatToPod}
		flow := Flow{Key: KeyOf(from), Reverse: KeyOf(back), Expires: 7, Flags: uint32(bpf.NatService), Service: 1, Backend: 2, Endpoint: 3}
		if got := flow.Key.Tuple(); got != from {
			t.Errorf("%+v came back as %+v", from, got)
		}
		if got := flow.Becomes(); got.Source != back.Destination || got.Destination != back.Source || got.Protocol != protocol {
			t.Errorf("%+v becomes %+v", back, got)
		}
		if got := again(flow); got != flow {
			t.Errorf("%+v came back from its entry as %+v", flow, got)
		}
	})
}

// again parses a flow from its own entry.
func again(f Flow) Flow {
	switch e := f.Entry(9).(type) {
	case *bpf.NatEntry4:
		return NewFlow4(&f.Key.V4, e)
	case *bpf.NatEntry6:
		return NewFlow6(&f.Key.V6, e)
	}
	return Flow{}
}

func TestKeyOf_PortsInNetworkOrder(t *testing.T) {
	t.Parallel()
	k := KeyOf(Tuple{netip.MustParseAddrPort("10.0.0.1:258"), netip.MustParseAddrPort("10.0.0.2:80"), unix.IPPROTO_UDP, bpf.NatToOutside})
	bytes, err := binary.Append(nil, binary.NativeEndian, k.V4)
	want := []byte{10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 0, 80, 17, 4, 0, 0}
	if err != nil || !slices.Equal(bytes, want) {
		t.Errorf("%v, %v, want %v", bytes, err, want)
	}
}

func TestStateAt(t *testing.T) {
	t.Parallel()
	const now = 1000
	fin, rst, established := uint32(bpf.NatSenderFin), uint32(bpf.NatSenderReset), uint32(bpf.NatSenderEstablished)
	for name, tc := range map[string]struct {
		protocol       uint8
		flags, reverse uint32
		left, right    uint32 // expiry of both entries
		want           State
	}{
		"a SYN":                          {unix.IPPROTO_TCP, established, 0, now + 1, now + 1, Opening},
		"both have sent more":            {unix.IPPROTO_TCP, established, established, now + 1, now + 1, Established},
		"one has ended":                  {unix.IPPROTO_TCP, established | fin, established, now + 1, now + 1, Closing},
		"both have":                      {unix.IPPROTO_TCP, established | fin, established | fin, now + 1, now + 1, Closed},
		"broken by the other":            {unix.IPPROTO_TCP, established, rst, now + 1, now + 1, Reset},
		"one direction stays open":       {unix.IPPROTO_UDP, 0, 0, now, now + 1, Alive},
		"the other direction stays open": {unix.IPPROTO_UDP, 0, 0, now + 1, now, Alive},
		"neither does":                   {unix.IPPROTO_TCP, established, established, now, now, Expired},
		"the clock wrapped round":        {unix.IPPROTO_UDP, 0, 0, now, 1<<31 + now + 1, Expired},
	} {
		f := Flow{Key: KeyOf(Tuple{Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("10.0.0.2:2"), Protocol: tc.protocol}),
			Flags: tc.flags, Expires: tc.left}
		if got := f.StateAt(now, &Flow{Flags: tc.reverse, Expires: tc.right}); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if tc.want == Expired && f.StateAt(now, nil) != Expired {
			t.Errorf("%s: without a reverse entry it lasts", name)
		}
	}
	if words := (&Flow{Flags: uint32(bpf.NatMasquerade | bpf.NatReply)}).Words(); !slices.Equal(words, []string{"masquerade", "reply"}) {
		t.Error(words)
	}
}

// Entries in real maps are read back, in slices and one by one.
func TestPrivilegedReader(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range Maps() {
		m, err := ebpf.NewMap(specs[of.Name])
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		a, b := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("192.0.2.1")
		if of.IPv6 {
			a, b = netip.MustParseAddr("fd00::7"), netip.MustParseAddr("2001:db8::1")
		}
		const count = 3000
		want := map[Key]Flow{}
		for i := range uint16(count) {
			key := KeyOf(Tuple{netip.AddrPortFrom(a, i), netip.AddrPortFrom(b, 80), unix.IPPROTO_TCP, bpf.NatToOutside})
			want[key] = Flow{Key: key, Reverse: KeyOf(Tuple{netip.AddrPortFrom(b, 80), netip.AddrPortFrom(a, i+1), unix.IPPROTO_TCP,
				bpf.NatFromOutside}), Expires: uint32(i), Service: 1, Backend: uint32(i), Endpoint: 7}
		}
		for _, f := range want {
			if err := m.Put(f.Key.Value(), f.Entry(1)); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // readers use the buffers of previous ones
			r, seen := NewReader(of, m, 1024), 0
			for last := false; !last; {
				var flows []Flow
				if flows, last, err = r.Next(); err != nil {
					t.Fatal(err)
				}
				for _, f := range flows {
					if f != want[f.Key] {
						t.Fatalf("%s: read %+v, want %+v", of.Name, f, want[f.Key])
					}
					seen++
				}
			}
			if r.Close(); seen != count {
				t.Errorf("%s: read %d of %d", of.Name, seen, count)
			}
		}
		for key, f := range want {
			if got, found, err := Lookup(m, &key); err != nil || !found || got != f {
				t.Fatalf("%s: looked up %+v, %v, %v", of.Name, got, found, err)
			}
			if _, found, err := Lookup(m, &f.Reverse); err != nil || found {
				t.Fatalf("%s: a reverse entry that was never stored: %v, %v", of.Name, found, err)
			}
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		entries     uint32
		percent     int
		share, rest uint32
	}{{65536, 25, 8192, 24576}, {32768, 50, 8192, 8192}, {65536, 90, 29491, 29491}, {65536, 100, 32768, 32768}, {10, 1, 1, 4}} {
		if share, rest := Share(tc.entries, tc.percent), Rest(tc.entries, tc.percent); share != tc.share || rest != tc.rest {
			t.Errorf("%+v: got %d and %d", tc, share, rest)
		}
	}
}

// The limit beyond guarantees leaves the guaranteed slots to 256 endpoints, the node and flows without an endpoint, for tables of all sizes.
func TestBeyond_LeavesGuarantees(t *testing.T) {
	t.Parallel()
	for entries := uint32(2); entries < 1<<24; entries += 1 + entries/7 {
		flows := entries / 2
		if sum := (256+2)*Guarantee(entries) + Beyond(entries); sum > flows || Beyond(entries) == 0 {
			t.Errorf("%d entries: guarantees of %d, %d beyond, which is more than %d flows", entries, Guarantee(entries), Beyond(entries), flows)
		}
		if entries >= 2048 && Guarantee(entries) == 0 {
			t.Errorf("%d entries guarantee nothing", entries)
		}
	}
}
