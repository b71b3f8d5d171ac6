package ctgc

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
)

// A pass over full maps deletes dead flows in pairs while other goroutines write as programs do, and keeps all live flows.
func TestPrivilegedPass_FullNatMapsWithConcurrentWrites(t *testing.T) {
	t.Parallel()
	maps := realMaps(t)
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	pair := func(m natmap.Map, i int, expires uint32) (own, reverse natmap.Flow) {
		pod, peer := pods[0].IPv4, netip.AddrFrom4([4]byte{198, 51, byte(i >> 16), byte(i >> 8)})
		if m.IPv6 {
			pod, peer = pods[0].IPv6, netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 16), 15: byte(i >> 8)})
		}
		from, to := netip.AddrPortFrom(pod, uint16(i)), netip.AddrPortFrom(peer, 443)
		own = natmap.Flow{Key: natmap.KeyOf(natmap.Tuple{Source: from, Destination: to, Protocol: unix.IPPROTO_TCP, Place: bpf.NatToOutside}),
			Reverse: natmap.KeyOf(natmap.Tuple{Source: to, Destination: from, Protocol: unix.IPPROTO_TCP, Place: bpf.NatFromOutside}),
			Expires: expires, Endpoint: uint32(pods[0].ID)}
		reverse = own
		reverse.Key, reverse.Reverse, reverse.Flags = own.Reverse, own.Key, uint32(bpf.NatReply)
		return own, reverse
	}
	put := func(f natmap.Flow) {
		if err := maps[natmap.Of(f.Key.IPv6).Name].Put(f.Key.Value(), f.Entry(1)); err != nil {
			t.Errorf("put %+v: %v", f.Key.Tuple(), err)
		}
	}
	count := map[string]int{}
	for _, m := range natmap.Maps() {
		n := int(maps[m.Name].MaxEntries()) / 2 * 3 / 4 // pairs; the rest is for concurrent writers
		count[m.Name] = n
		for i := range n {
			own, reverse := pair(m, i, now+5000)
			if i%2 == 0 {
				own.Expires, reverse.Expires = now, now
			} else if i%4 == 1 {
				own.Expires = now // the other direction stays alive
			}
			put(own)
			put(reverse)
		}
	}
	c := realCollector(t, maps, pods...)
	p := &pass{access: c.access, pause: time.Millisecond}
	done := make(chan struct{})
	var writer sync.WaitGroup
	added := 0
	writer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, m := range natmap.Maps() {
				if added >= count[m.Name]/6 {
					continue
				}
				own, reverse := pair(m, 1<<20+added, now+5000)
				put(reverse)
				put(own)
			}
			added++
		}
	})
	begin := time.Now()
	err = p.run(t.Context())
	took := time.Since(begin)
	close(done)
	writer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a pass over %d pairs that deleted half of them took %s", count[bpf.MapNat4]+count[bpf.MapNat6], took)
	for _, m := range natmap.Maps() {
		left, err := c.natEntries(m)
		if err != nil {
			t.Fatal(err)
		}
		for i := range count[m.Name] {
			own, reverse := pair(m, i, 0)
			_, hasOwn := left[own.Key]
			_, hasReverse := left[reverse.Key]
			if alive := i%2 != 0; hasOwn != alive || hasReverse != alive {
				t.Fatalf("%s: pair %d is %v and %v", m.Name, i, hasOwn, hasReverse)
			}
		}
		for i := range min(added, count[m.Name]/6) {
			own, reverse := pair(m, 1<<20+i, 0)
			if _, found := left[own.Key]; !found {
				t.Fatalf("%s: new pair %d is gone", m.Name, i)
			}
			if _, found := left[reverse.Key]; !found {
				t.Fatalf("%s: the reverse entry of new pair %d is gone", m.Name, i)
			}
		}
		if f := p.found[m.Name]; f.expired != uint64(count[m.Name])/2*2 && f.expired != uint64(count[m.Name]+1)/2*2 {
			t.Errorf("%s: %+v", m.Name, f)
		}
	}
}
