package ctmap

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// FuzzKeyOf checks that a flow has the same key in both directions, and that the tuple of the key distinguishes both ends.
func FuzzKeyOf(f *testing.F) {
	f.Add(binary.NativeEndian.AppendUint64(nil, 7), binary.NativeEndian.AppendUint64(nil, 9), uint16(1234), uint16(80), uint8(6), uint8(0))
	f.Add(make([]byte, 16), append(make([]byte, 15), 1), uint16(1), uint16(2), uint8(17), uint8(0))
	f.Add([]byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}, uint16(7), uint16(7), uint8(1), uint8(8))
	f.Add([]byte{10, 0, 0, 1}, []byte{10, 0, 0, 1}, uint16(2), uint16(256), uint8(6), uint8(0))
	f.Fuzz(func(t *testing.T, a, b []byte, sport, dport uint16, protocol, kind uint8) {
		initiator, ok1 := netip.AddrFromSlice(a)
		responder, ok2 := netip.AddrFromSlice(b)
		if !ok1 || !ok2 || len(a) != len(b) || initiator.Is4In6() || responder.Is4In6() || initiator.Is4() && (initiator.IsUnspecified() || responder.IsUnspecified()) {
			return // not addresses of a packet
		}
		question := bpf.CtFlow{Initiator: netip.AddrPortFrom(initiator, sport), Responder: netip.AddrPortFrom(responder, dport), Protocol: protocol}
		icmp := protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6
		if icmp {
			question.Responder, question.ICMPType = netip.AddrPortFrom(responder, sport), kind
		}
		key, second := KeyOf(question)
		flow := Flow{Key: key}
		if second {
			flow.Entry.Flags = bpf.CtInitiatorSecond
		}
		if got := flow.Tuple(); got != question {
			t.Errorf("%+v came back as %+v", question, got)
		}
		back := question
		back.Initiator, back.Responder = question.Responder, question.Initiator
		other, _ := KeyOf(back)
		same := initiator == responder && question.Initiator.Port() == question.Responder.Port()
		if icmp && !same && other == key {
			t.Errorf("%+v: a question of the other side has the same key", question)
		}
		if !icmp && other != key {
			t.Errorf("%+v: keys %+v and, the other way, %+v", question, key, other)
		}
	})
}

func TestStateAt(t *testing.T) {
	t.Parallel()
	const now = uint32(1000)
	for name, tc := range map[string]struct {
		protocol    uint8
		established bool
		flags       uint32
		expires     uint32
		want        State
	}{
		"SYN":                    {unix.IPPROTO_TCP, false, 0, 1001, Opening},
		"SYN-ACK":                {unix.IPPROTO_TCP, false, uint32(bpf.CtReplied), 1001, Handshake},
		"ACK":                    {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished), 9000, Established},
		"FIN of the initiator":   {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished | bpf.CtInitiatorFin), 9000, Closing},
		"FIN of the target":      {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished | bpf.CtResponderFin), 9000, Closing},
		"FIN of both":            {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished | bpf.CtInitiatorFin | bpf.CtResponderFin), 1010, Closed},
		"RST of the initiator":   {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished | bpf.CtInitiatorReset), 1010, Reset},
		"RST of the target":      {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished | bpf.CtResponderReset), 1010, Reset},
		"datagram":               {unix.IPPROTO_UDP, false, 0, 1060, Unanswered},
		"answer":                 {unix.IPPROTO_UDP, false, uint32(bpf.CtReplied), 1060, Answered},
		"request after it":       {unix.IPPROTO_UDP, true, 0, 1060, Answered},
		"the last tick":          {unix.IPPROTO_TCP, true, uint32(bpf.CtEstablished), 1000, Expired},
		"long over":              {unix.IPPROTO_UDP, false, 0, 2, Expired},
		"the clock wraps around": {unix.IPPROTO_UDP, true, 0, math.MaxUint32, Expired},
	} {
		f := Flow{Established: tc.established, Key: Key{V4: bpf.CtKey4{Protocol: tc.protocol}}, Entry: bpf.CtEntry{Expires: tc.expires}}
		for bit := uint32(1); bit <= tc.flags; bit <<= 1 { // the type of the flags is not exported
			switch tc.flags & bit {
			case uint32(bpf.CtInitiatorFin):
				f.Entry.Flags |= bpf.CtInitiatorFin
			case uint32(bpf.CtResponderFin):
				f.Entry.Flags |= bpf.CtResponderFin
			case uint32(bpf.CtInitiatorReset):
				f.Entry.Flags |= bpf.CtInitiatorReset
			case uint32(bpf.CtResponderReset):
				f.Entry.Flags |= bpf.CtResponderReset
			case uint32(bpf.CtEstablished):
				f.Entry.Flags |= bpf.CtEstablished
			case uint32(bpf.CtReplied):
				f.Entry.Flags |= bpf.CtReplied
			}
		}
		if got := f.StateAt(now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestAgeAndLeft(t *testing.T) {
	t.Parallel()
	f := Flow{Entry: bpf.CtEntry{Created: math.MaxUint32 - 1, Expires: 10}}
	if got, want := f.Age(2), bpf.CtDuration(4); got != want { // the clock wrapped around
		t.Errorf("age %s, want %s", got, want)
	}
	if got, want := f.Left(2), bpf.CtDuration(8); got != want {
		t.Errorf("left %s, want %s", got, want)
	}
	if got := f.Left(10); got != 0 {
		t.Errorf("an expired flow has %s left", got)
	}
}

func TestProtocol_IsAWordOrANumber(t *testing.T) {
	t.Parallel()
	numbers := map[string]int{}
	for n := range 256 {
		name := Protocol(uint8(n))
		if other, taken := numbers[name]; taken {
			t.Errorf("protocols %d and %d are both %s", n, other, name)
		}
		numbers[name] = n
	}
	for name, want := range map[string]int{"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 1, "ICMPv6": 58, "47": 47} {
		if numbers[name] != want {
			t.Errorf("%s is protocol %d, want %d", name, numbers[name], want)
		}
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ initiator, responder, want uint16 }{{0, 0, 0}, {3, 0, 3}, {0, 4, 4}, {3, 4, 3}} {
		if got := (&Flow{Entry: bpf.CtEntry{Initiator: tc.initiator, Responder: tc.responder}}).Owner(); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}

// The agent and the programs use the same clock: [bpf.CtNow] and bpf_ktime_get_coarse_ns differ by at most one tick.
func TestCtNow_IsTheKernelsMonotonicClock(t *testing.T) {
	t.Parallel()
	var coarse unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &coarse); err != nil {
		t.Fatal(err)
	}
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	if want := bpf.CtTicks(time.Duration(coarse.Nano())); now+1 < want || now > want+60 {
		t.Errorf("now is tick %d, the kernel's coarse clock says %d", now, want)
	}
}

// TestPrivilegedReader_SeesEveryEntryOnce reads more than one slice of each map, and deletes entries between two slices.
func TestPrivilegedReader_SeesEveryEntryOnce(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	const entries, size = 5000, 256
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range Maps() {
		t.Run(m.Name, func(t *testing.T) {
			from, err := ebpf.NewMap(specs[m.Name])
			if err != nil {
				t.Fatal(err)
			}
			defer from.Close()
			want := map[bpf.CtFlow]bool{}
			for len(want) < entries {
				flow, key, entry := anyFlow(random, m.IPv6)
				if err := from.Put(key.Value(), &entry); err != nil {
					t.Fatal(err)
				}
				want[flow] = true
			}
			r, slices := NewReader(m, from, size), 0
			for last := false; !last; slices++ {
				var flows []Flow
				if flows, last, err = r.Next(); err != nil {
					t.Fatal(err)
				}
				if len(flows) > size {
					t.Fatalf("a slice of %d", len(flows))
				}
				for _, f := range flows {
					if !want[f.Tuple()] || f.Established != m.Established || f.Entry.Packets != uint64(f.Tuple().Initiator.Port()) {
						t.Fatalf("unexpected or seen twice: %+v", f)
					}
					delete(want, f.Tuple())
					if err := from.Delete(f.Key.Value()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(want) > 0 || slices < entries/size {
				t.Errorf("%d entries were not seen in %d slices", len(want), slices)
			}
		})
	}
}

// anyFlow returns a random flow, its key and its entry. The packet counter of the entry is the initiator's port.
func anyFlow(random *rand.Rand, ipv6 bool) (bpf.CtFlow, Key, bpf.CtEntry) {
	addr := func() netip.Addr {
		b := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, random.Uint64()), random.Uint64())
		if ipv6 {
			return netip.AddrFrom16([16]byte(slices.Replace(b, 0, 2, 0xfd, 0)))
		}
		return netip.AddrFrom4([4]byte(slices.Replace(b[:4], 0, 1, 10)))
	}
	flow := bpf.CtFlow{Initiator: netip.AddrPortFrom(addr(), uint16(random.Uint32())), Responder: netip.AddrPortFrom(addr(), uint16(random.Uint32())),
		Protocol: unix.IPPROTO_TCP}
	key, second := KeyOf(flow)
	entry := bpf.CtEntry{Check: 1, Packets: uint64(flow.Initiator.Port())}
	if second {
		entry.Flags = bpf.CtInitiatorSecond
	}
	return flow, key, entry
}
