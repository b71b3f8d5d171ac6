package ipamallocator

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// newIPAM creates an allocator without addresses to restore; tests set ranges with apply.
func newIPAM(t testing.TB, quarantine time.Duration) *allocator {
	t.Helper()
	a := startIPAM(t, t.TempDir(), quarantine)
	a.RestoreDone()
	return a
}

// startIPAM creates an allocator as at the start of an agent, with the files that previous allocators left in a directory.
func startIPAM(t testing.TB, dir string, quarantine time.Duration) *allocator {
	t.Helper()
	db := statedb.New()
	table, err := ipamaddresses.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	of := agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, StateDir: dir}
	return newAllocator(allocatorParams{DB: db, Table: table, Log: slog.New(slog.DiscardHandler), Ledger: newLedger(of), Agent: of,
		Settings: settings{pool: ipam.DefaultPool, strategy: ipalloc.Random, quarantine: quarantine}})
}

func prefixOf(text string) wanted {
	if text == "" {
		return wanted{waitingFor: "nothing"}
	}
	return wanted{prefix: netip.MustParsePrefix(text)}
}

func mustApply(t testing.TB, a *allocator, ipv4, ipv6 string) routers {
	t.Helper()
	r, err := a.apply(prefixOf(ipv4), prefixOf(ipv6))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustNext(t testing.TB, a *allocator, expire bool) *ipam.Allocation {
	t.Helper()
	r, err := a.Next(t.Context(), ipam.Request{IPv4: true, Owner: "default/pod", Expire: expire})
	if err != nil {
		t.Fatal(err)
	}
	return r.IPv4
}

func mustClaim(t testing.TB, a *allocator, got *ipam.Allocation, attachment string) {
	t.Helper()
	if err := a.Claim([]ipam.Claim{{Addr: got.Addr, UUID: got.UUID, Attachment: attachment}}); err != nil {
		t.Fatal(err)
	}
}

func (a *allocator) stateOf(addr netip.Addr) ipamaddresses.State {
	row, _, _ := a.table.Get(a.db.ReadTxn(), ipamaddresses.ByAddr(addr))
	return row.State
}

// runExpiry runs the expiry loop until the test ends.
func runExpiry(t *testing.T, a *allocator) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	health, _ := cell.NewSimpleHealth()
	done.Go(func() {
		if err := a.expireLoop(ctx, health); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}

func TestUnclaimedAllocation_ExpiresAfterTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, 30*time.Second)
		mustApply(t, a, "10.0.0.0/24", "")
		runExpiry(t, a)
		lost, claimed, forever := mustNext(t, a, true), mustNext(t, a, true), mustNext(t, a, false)
		mustClaim(t, a, claimed, "c1:eth0")

		time.Sleep(ipam.ExpireAfter - time.Second)
		synctest.Wait()
		if got := a.stateOf(lost.Addr); got != ipamaddresses.Allocated {
			t.Fatalf("before its end the allocation is %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := a.stateOf(lost.Addr); got != ipamaddresses.Quarantined {
			t.Errorf("at its end the allocation is %q", got)
		}
		err := a.Claim([]ipam.Claim{{Addr: lost.Addr, UUID: lost.UUID, Attachment: "c2:eth0"}})
		if !errors.Is(err, ipam.ErrExpired) {
			t.Errorf("claim after the end: %v", err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := a.stateOf(lost.Addr); got != "" {
			t.Errorf("after its quarantine it is %q", got)
		}
		if got := a.stateOf(claimed.Addr); got != ipamaddresses.Claimed {
			t.Errorf("what was claimed is %q", got)
		}
		if got := a.stateOf(forever.Addr); got != ipamaddresses.Allocated {
			t.Errorf("what was allocated without an expiry is %q", got)
		}
	})
}

func TestClaim_AtExpiry_Fails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, 30*time.Second)
		mustApply(t, a, "10.0.0.0/24", "")
		got := mustNext(t, a, true)
		time.Sleep(ipam.ExpireAfter) // the loop does not run: Claim itself must check the expiry
		err := a.Claim([]ipam.Claim{{Addr: got.Addr, UUID: got.UUID}})
		if !errors.Is(err, ipam.ErrExpired) {
			t.Errorf("claim at the end: %v", err)
		}
	})
}

func TestClaim_TakesAllOrNothing(t *testing.T) {
	t.Parallel()
	a := newIPAM(t, time.Second)
	mustApply(t, a, "10.0.0.0/24", "fd00::/64")
	r, err := a.Next(t.Context(), ipam.Request{Owner: "default/pod", Expire: true})
	if err != nil {
		t.Fatal(err)
	}
	claims := []ipam.Claim{{Addr: r.IPv4.Addr, UUID: r.IPv4.UUID}, {Addr: r.IPv6.Addr, UUID: "wrong"}}
	if err := a.Claim(claims); !errors.Is(err, ipam.ErrExpired) {
		t.Fatalf("claim with one wrong UUID: %v", err)
	}
	if got := a.stateOf(r.IPv4.Addr); got != ipamaddresses.Allocated {
		t.Errorf("after a refused claim the other address is %q", got)
	}
	claims[1].UUID = r.IPv6.UUID
	if err := a.Claim(append(claims, claims[0])); !errors.Is(err, ipam.ErrTaken) {
		t.Errorf("claim of one address twice: %v", err)
	}
	if err := a.Claim(claims); err != nil {
		t.Errorf("claim: %v", err)
	}
	free := ipam.Claim{Addr: netip.MustParseAddr("10.0.0.77"), Attachment: "c3:eth0"}
	if a.stateOf(free.Addr) != "" {
		free.Addr = free.Addr.Next()
	}
	if err := a.Claim([]ipam.Claim{free}); err != nil {
		t.Errorf("claim of a free address without a UUID: %v", err)
	}
}

func TestNext_OtherFamilyFull_ReleasesAddress(t *testing.T) {
	t.Parallel()
	a := newIPAM(t, time.Minute)
	mustApply(t, a, "10.0.0.0/32", "fd00::/64") // the router has the only IPv4 address
	_, err := a.Next(t.Context(), ipam.Request{Owner: "default/pod"})
	if !errors.Is(err, ipam.ErrExhausted) {
		t.Fatalf("Next: %v", err)
	}
	if used := a.ipv6.free.Used(); used != 3 {
		t.Errorf("%d IPv6 addresses are taken, want network, last and router", used)
	}
}

func TestQuarantine_EndsEarlyOnlyWhenPoolIsExhausted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, 30*time.Second)
		mustApply(t, a, "10.0.0.0/29", "") // five addresses besides the router
		runExpiry(t, a)
		var all []*ipam.Allocation
		for range 5 {
			all = append(all, mustNext(t, a, false))
		}
		release := func(i int) {
			if _, err := a.Release(all[i].Addr, "", ""); err != nil {
				t.Fatal(err)
			}
		}
		release(0)
		time.Sleep(time.Second)
		release(1)
		_, err := a.Next(t.Context(), ipam.Request{IPv4: true})
		if !errors.Is(err, ipam.ErrExhausted) || !strings.Contains(err.Error(), "2 quarantined") ||
			!strings.Contains(err.Error(), "one is free in 1s") {
			t.Fatalf("Next while both are fresh: %v", err)
		}
		time.Sleep(time.Second)
		if got := mustNext(t, a, false); got.Addr != all[0].Addr {
			t.Errorf("got %v, want the oldest %v", got.Addr, all[0].Addr)
		}
		if a.ipv4.events.EarlyReuses != 1 {
			t.Errorf("%d quarantines were counted as cut short", a.ipv4.events.EarlyReuses)
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := a.stateOf(all[1].Addr); got != "" {
			t.Errorf("after 30 s the other is %q", got)
		}
		if got := a.stateOf(all[0].Addr); got != ipamaddresses.Allocated {
			t.Errorf("the reused address is %q: its old quarantine freed it", got)
		}
	})
}

// TestQuarantine_Expired_IsNoEarlyReuse: the expiry loop may be late.
func TestQuarantine_Expired_IsNoEarlyReuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, 3*time.Second)
		mustApply(t, a, "10.0.0.0/30", "") // one address besides the router
		one := mustNext(t, a, false)
		for i, c := range []struct {
			rest  time.Duration
			early uint64
		}{{3 * time.Second, 0}, {3*time.Second - 1, 1}} {
			if _, err := a.Release(one.Addr, "", ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.rest)
			if got := mustNext(t, a, false); got.Addr != one.Addr {
				t.Errorf("got %v", got)
			}
			if got := a.ipv4.events.EarlyReuses; got != c.early {
				t.Errorf("round %d: %d quarantines were counted as cut short, want %d", i, got, c.early)
			}
		}
	})
}

func TestApply_NewRange_KeepsAllocations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newIPAM(t, time.Second)
		mustApply(t, a, "10.0.0.0/24", "")
		runExpiry(t, a)
		old := mustNext(t, a, true)
		mustClaim(t, a, old, "c1:eth0")
		if r := mustApply(t, a, "10.7.0.0/24", ""); r.IPv4 != netip.MustParseAddr("10.7.0.1") {
			t.Errorf("the new router is %v", r.IPv4)
		}
		if got := mustNext(t, a, true); !got.Range.Contains(got.Addr) || got.Range.String() != "10.7.0.0/24" {
			t.Errorf("after the change got %v of %v", got.Addr, got.Range)
		}
		if got := a.stateOf(old.Addr); got != ipamaddresses.Claimed {
			t.Errorf("the address of the running pod is %q", got)
		}
		for _, gone := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.255"} {
			if got := a.stateOf(netip.MustParseAddr(gone)); got != "" {
				t.Errorf("%s of the old range is still %q", gone, got)
			}
		}
		if dump := a.dump(); !strings.Contains(dump, "1 of previous ranges") {
			t.Errorf("the dump hides the old address:\n%s", dump)
		}
		if found, err := a.Release(old.Addr, "", "c1:eth0"); !found || err != nil {
			t.Errorf("release: %v, %v", found, err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := a.stateOf(old.Addr); got != "" {
			t.Errorf("after its quarantine it is %q", got)
		}
		// A larger range that contains the router address keeps it.
		if r := mustApply(t, a, "10.7.0.0/16", ""); r.IPv4 != netip.MustParseAddr("10.7.0.1") {
			t.Errorf("the router moved to %v", r.IPv4)
		}
		checkConsistent(t, a)
	})
}

// TestExclude_AppliesWhenThePodIsGone: an address that is excluded while a pod has it is never free for another pod.
func TestExclude_AppliesWhenThePodIsGone(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.0.0.3")
	onNode := prefixOf("10.0.0.0/29")
	onNode.nodeIPs = []netip.Addr{addr}
	for name, c := range map[string]struct {
		wanted wanted
		owner  string
	}{
		"it is the address of a device": {onNode, ownerNode},
		"the range is narrowed":         {prefixOf("10.0.0.0/30"), ownerLast},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newIPAM(t, 30*time.Second)
				mustApply(t, a, "10.0.0.0/29", "")
				runExpiry(t, a)
				if err := a.Specific(t.Context(), addr, "default/pod", ""); err != nil {
					t.Fatal(err)
				}
				if _, err := a.apply(c.wanted, prefixOf("")); err != nil {
					t.Fatal(err)
				}
				if _, err := a.Release(addr, "", ""); err != nil {
					t.Fatal(err)
				}
				nextUntilFull := func() (got []netip.Addr) {
					for {
						r, err := a.Next(t.Context(), ipam.Request{IPv4: true})
						if errors.Is(err, ipam.ErrExhausted) {
							return got
						}
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, r.IPv4.Addr)
					}
				}
				time.Sleep(2 * minQuarantine) // a full range may reuse other addresses now
				if got := nextUntilFull(); slices.Contains(got, addr) {
					t.Errorf("%v is given out of quarantine", addr)
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				row, _, _ := a.table.Get(a.db.ReadTxn(), ipamaddresses.ByAddr(addr))
				if row.State != ipamaddresses.Excluded || row.Owner != c.owner || !row.Expiry.IsZero() {
					t.Errorf("after its quarantine it is %q of %q until %v", row.State, row.Owner, row.Expiry)
				}
				if got := nextUntilFull(); len(got) > 0 {
					t.Errorf("%v are given after the quarantine", got)
				}
				checkConsistent(t, a)
				mustApply(t, a, "10.0.0.0/29", "") // the exclusion ends
				if got := nextUntilFull(); !slices.Contains(got, addr) {
					t.Errorf("after its exclusion %v are given", got)
				}
				checkConsistent(t, a)
			})
		})
	}
}

func TestApply_RestoresRouterAddress(t *testing.T) {
	t.Parallel()
	held := netip.MustParseAddr("10.0.0.9")
	for _, test := range []struct {
		name string
		seen []string
		want string
	}{
		{"kept address", []string{"10.0.0.5", "10.0.0.6"}, "10.0.0.5"},
		{"kept address of another range", []string{"10.1.0.5", "10.0.0.6"}, "10.0.0.6"},
		{"a pod has it", []string{"10.0.0.9", "10.0.0.6"}, "10.0.0.6"},
		{"it is the broadcast address", []string{"10.0.0.255"}, "10.0.0.1"},
		{"the node has it", []string{"10.0.0.20"}, "10.0.0.1"},
		{"nowhere", nil, "10.0.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newIPAM(t, time.Second)
			if err := a.Restore([]ipam.Claim{{Addr: held, Attachment: "c1:eth0"}}); err != nil {
				t.Fatal(err)
			}
			w := prefixOf("10.0.0.0/24")
			w.nodeIPs = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
			for _, s := range test.seen {
				w.routers = append(w.routers, netip.MustParseAddr(s))
			}
			r, err := a.apply(w, prefixOf(""))
			if err != nil || r.IPv4.String() != test.want {
				t.Errorf("router is %v (%v), want %s", r.IPv4, err, test.want)
			}
			checkConsistent(t, a)
		})
	}
}

func TestOwners_AreBoundedAndShownQuoted(t *testing.T) {
	t.Parallel()
	a := newIPAM(t, 0)
	mustApply(t, a, "10.0.0.0/24", "")
	long := strings.Repeat("a", 10_000)
	if _, err := a.Next(t.Context(), ipam.Request{IPv4: true, Owner: long}); err == nil {
		t.Error("an owner of 10,000 bytes is accepted by Next")
	}
	if err := a.Specific(t.Context(), netip.MustParseAddr("10.0.0.9"), long, ""); err == nil {
		t.Error("an owner of 10,000 bytes is accepted by Specific")
	}
	got, err := a.Next(t.Context(), ipam.Request{IPv4: true, Owner: "\x1b[2J"})
	if err != nil {
		t.Fatal(err)
	}
	row, _, _ := a.table.Get(a.db.ReadTxn(), ipamaddresses.ByAddr(got.IPv4.Addr))
	if shown := strings.Join(row.TableRow(), " ") + a.dump(); strings.Contains(shown, "\x1b") {
		t.Errorf("%q is not fit to be shown", shown)
	}
}

func TestRestore_DisabledFamily_KeepsAddresses(t *testing.T) {
	t.Parallel()
	a := newIPAM(t, 0)
	a.ipv6.enabled = false
	addr := netip.MustParseAddr("fd00::7")
	if err := a.Restore([]ipam.Claim{{Addr: addr, Attachment: "c1:eth0"}}); err != nil {
		t.Fatal(err)
	}
	if found, err := a.Release(addr, "", "c1:eth0"); !found || err != nil {
		t.Errorf("release: %v, %v", found, err)
	}
	if _, err := a.expire(time.Now()); err != nil || a.stateOf(addr) != "" {
		t.Errorf("after its quarantine it is %q (%v)", a.stateOf(addr), err)
	}
	if _, err := a.Next(t.Context(), ipam.Request{IPv6: true}); err == nil {
		t.Error("an address of a disabled family was given")
	}
}

// checkConsistent compares rows and bitmaps: inside a range, exactly the addresses with a row are taken.
func checkConsistent(t *testing.T, a *allocator) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range []*family{&a.ipv4, &a.ipv6} {
		if f.free == nil {
			continue
		}
		rows := uint64(0)
		for row := range a.table.All(a.db.ReadTxn()) {
			if !f.contains(row.Addr) {
				continue
			}
			rows++
			if !f.free.Has(row.Addr) {
				t.Errorf("%v is %s and can be given again", row.Addr, row.State)
			}
		}
		if used := f.free.Used(); used != rows {
			t.Errorf("%s: %d addresses are taken and %d have a row", f.name, used, rows)
		}
	}
}
