package ipamallocator

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// model is a simple model of the allocator's state.
type model struct {
	held     map[netip.Addr]string    // the attachment, or "" while the address is allocated and not claimed
	uuids    map[netip.Addr]string    // of unclaimed allocations
	released map[netip.Addr]time.Time // time of the release, or of the last restart if that is later
	given    map[netip.Addr]time.Time // time of the allocation, likewise
}

// TestAllocator_AgreesWithModel runs random operations in virtual time and compares every result with the model.
func TestAllocator_AgreesWithModel(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			synctest.Test(t, func(t *testing.T) { againstModel(t, random) })
		})
	}
}

func againstModel(t *testing.T, r *rand.Rand) {
	const quarantine = 30 * time.Second
	dir := t.TempDir()
	a := startIPAM(t, dir, quarantine)
	a.RestoreDone()
	ranges := []string{"10.0.0.0/27", "10.0.0.0/28", "10.9.0.0/27", "10.0.0.0/26"}
	current := ranges[0]
	mustApply(t, a, current, "")
	m := model{map[netip.Addr]string{}, map[netip.Addr]string{}, map[netip.Addr]time.Time{}, map[netip.Addr]time.Time{}}
	for step := range 2000 {
		switch r.IntN(8) {
		case 0, 1, 2:
			m.next(t, a, quarantine)
		case 3, 4:
			m.claim(t, a, r, step)
		case 5:
			m.release(t, a, r)
		case 6:
			time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
			if _, err := a.expire(time.Now()); err != nil {
				t.Fatal(err)
			}
		case 7:
			if r.IntN(20) == 0 {
				current = ranges[r.IntN(len(ranges))]
				mustApply(t, a, current, "")
			}
			if r.IntN(10) == 0 {
				a = m.restart(t, a, dir, quarantine)
				mustApply(t, a, current, "")
			}
		}
		checkConsistent(t, a)
		if t.Failed() {
			t.Fatalf("after step %d", step)
		}
	}
}

// next requests an address. If none is returned, every address of the range must be in use or recently released.
func (m model) next(t *testing.T, a *allocator, quarantine time.Duration) {
	t.Helper()
	got, err := a.Next(t.Context(), ipam.Request{IPv4: true, Expire: true})
	if errors.Is(err, ipam.ErrExhausted) {
		for addr := a.ipv4.free.Prefix().Addr(); a.ipv4.contains(addr); addr = addr.Next() {
			_, held := m.held[addr]
			state := a.stateOf(addr)
			// The last address of a narrower range may be in quarantine: no pod may get it, however long ago its release was.
			reserved := state == ipamaddresses.Excluded || state == ipamaddresses.Reserved || addr == ipalloc.Last(a.ipv4.free.Prefix())
			if !held && !reserved && time.Since(m.released[addr]) >= minQuarantine {
				t.Errorf("the range is said to be full, but %v is %q", addr, state)
			}
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	addr := got.IPv4.Addr
	if _, held := m.held[addr]; held {
		t.Errorf("%v was given to two", addr)
	}
	if prefix := a.ipv4.free.Prefix(); addr == prefix.Addr() || addr == ipalloc.Last(prefix) {
		t.Errorf("%v, the first or last address of the range, was given", addr)
	}
	if at, ok := m.released[addr]; ok && time.Since(at) < quarantine { // wall clock: virtual, the model runs in a bubble
		if time.Since(at) < minQuarantine { // wall clock: virtual
			t.Errorf("%v was given %v after its release", addr, time.Since(at))
		}
		if a.ipv4.events.EarlyReuses == 0 {
			t.Errorf("%v came out of quarantine early and was not counted", addr)
		}
	}
	delete(m.released, addr)
	m.held[addr], m.uuids[addr], m.given[addr] = "", got.IPv4.UUID, time.Now()
}

// restart replaces the allocator: the new one restores claims as from endpoint files and the rest from its own files. All waits start again.
func (m model) restart(t *testing.T, old *allocator, dir string, quarantine time.Duration) *allocator {
	t.Helper()
	if _, err := old.expire(time.Now()); err != nil { // entries that are due expire before the restart
		t.Fatal(err)
	}
	a := startIPAM(t, dir, quarantine)
	for addr, attachment := range m.held {
		if attachment != "" {
			if err := a.Restore([]ipam.Claim{{Addr: addr, Attachment: attachment}}); err != nil {
				t.Error(err)
			}
		}
	}
	a.RestoreDone()
	for addr, at := range m.released {
		if time.Since(at) < quarantine {
			m.released[addr] = time.Now()
			if a.stateOf(addr) != ipamaddresses.Quarantined {
				t.Errorf("%v rested and is %q after a restart", addr, a.stateOf(addr))
			}
		}
	}
	for addr, attachment := range m.held {
		if attachment == "" && old.stateOf(addr) == ipamaddresses.Allocated {
			m.given[addr] = time.Now()
			if a.stateOf(addr) != ipamaddresses.Allocated {
				t.Errorf("%v was handed out and is %q after a restart", addr, a.stateOf(addr))
			}
		}
	}
	return a
}

// pick returns one of the held addresses, reproducibly for a seed.
func (m model) pick(r *rand.Rand) (netip.Addr, bool) {
	if len(m.held) == 0 {
		return netip.Addr{}, false
	}
	addrs := slices.SortedFunc(maps.Keys(m.held), netip.Addr.Compare)
	return addrs[r.IntN(len(addrs))], true
}

func (m model) claim(t *testing.T, a *allocator, r *rand.Rand, step int) {
	t.Helper()
	addr, ok := m.pick(r)
	if !ok {
		return
	}
	attachment, was := fmt.Sprintf("c%d:eth0", step), m.held[addr]
	err := a.Claim([]ipam.Claim{{Addr: addr, UUID: m.uuids[addr], Attachment: attachment}})
	switch {
	case was == "" && err == nil:
		m.held[addr] = attachment
	case was == "" && errors.Is(err, ipam.ErrExpired) && time.Since(m.given[addr]) >= ipam.ExpireAfter: // wall clock: virtual
		delete(m.held, addr)
	case was != "" && errors.Is(err, ipam.ErrTaken):
	default:
		t.Errorf("claim of %v, which %q has: %v", addr, was, err)
	}
}

func (m model) release(t *testing.T, a *allocator, r *rand.Rand) {
	t.Helper()
	addr, ok := m.pick(r)
	if !ok {
		return
	}
	was := m.held[addr]
	if was != "" {
		if _, err := a.Release(addr, "", "another owner"); !errors.Is(err, ipam.ErrInUse) {
			t.Errorf("release of %v by another owner: %v", addr, err)
		}
	}
	found, err := a.Release(addr, "", was)
	if err != nil || !found && was != "" {
		t.Errorf("release of %v: %v, %v", addr, found, err)
	}
	delete(m.held, addr)
	m.released[addr] = time.Now()
}

// TestAllocator_ManyAtOnce runs callers concurrently with a loop that changes ranges and one that expires addresses.
func TestAllocator_ManyAtOnce(t *testing.T) {
	t.Parallel()
	a := newIPAM(t, time.Millisecond)
	mustApply(t, a, "10.0.0.0/24", "fd00::/64")
	var mu sync.Mutex
	owners := map[netip.Addr]int{}
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for i := range 50 {
				got, err := a.Next(t.Context(), ipam.Request{Expire: true})
				if err != nil {
					t.Error(err)
					return
				}
				attachment := fmt.Sprintf("c%d-%d:eth0", caller, i)
				claims := []ipam.Claim{{Addr: got.IPv4.Addr, UUID: got.IPv4.UUID, Attachment: attachment},
					{Addr: got.IPv6.Addr, UUID: got.IPv6.UUID, Attachment: attachment}}
				if err := a.Claim(claims); err != nil {
					t.Error(err)
				}
				for _, c := range claims {
					mu.Lock()
					if owners[c.Addr]++; owners[c.Addr] > 1 {
						t.Errorf("%v has two owners", c.Addr)
					}
					mu.Unlock()
				}
				for _, c := range claims {
					mu.Lock()
					owners[c.Addr]--
					mu.Unlock()
					if found, err := a.Release(c.Addr, "", attachment); !found || err != nil {
						t.Errorf("release %v: %v, %v", c.Addr, found, err)
					}
				}
				if _, err := a.expire(time.Now()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	checkConsistent(t, a)
}

// BenchmarkNextAndClaim measures the share of this cell in an ADD, and the release of a DEL.
func BenchmarkNextAndClaim(b *testing.B) {
	a := newIPAM(b, 0)
	mustApply(b, a, "10.0.0.0/16", "fd00::/64")
	b.ReportAllocs()
	for b.Loop() {
		got, err := a.Next(b.Context(), ipam.Request{Owner: "default/pod", Expire: true})
		if err != nil {
			b.Fatal(err)
		}
		err = a.Claim([]ipam.Claim{{Addr: got.IPv4.Addr, UUID: got.IPv4.UUID, Attachment: "c:eth0"},
			{Addr: got.IPv6.Addr, UUID: got.IPv6.UUID, Attachment: "c:eth0"}})
		if err != nil {
			b.Fatal(err)
		}
	}
}
