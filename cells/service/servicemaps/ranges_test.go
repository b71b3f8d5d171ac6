package servicemaps

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// With source ranges of only one family, the address of the other family allows no client, as in Cilium. kube-proxy allows all clients there. A forgotten range
// must not open the service.
func TestValueOf_RangesOfOtherFamily_AllowNoClient(t *testing.T) {
	t.Parallel()
	only4 := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for addr, ranges := range map[string][]netip.Prefix{"203.0.113.7": only4, "2001:db8:7::7": only4, "203.0.113.8": nil, "2001:db8:7::8": nil} {
		row := &frontends.Frontend{Address: loadbalancer.Address{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: loadbalancer.TCP},
			ID: 1, Kind: frontends.LoadBalancer, Outside: true, Ranges: ranges}
		if restricted := valueOf(row, bpf.ScopeExternal).Flags&bpf.ServiceRanges != 0; restricted != (ranges != nil) {
			t.Errorf("%s with ranges %v: asks where clients are: %t", addr, ranges, restricted)
		}
	}
}

// ranged is an agent with one frontend with source ranges, and a map of ranges of a given size.
type ranged struct {
	*testing.T
	*agent
	f   *fakes
	now time.Time
}

func newRanged(t *testing.T, size int) *ranged {
	f := newFakes(20, 8, 0)
	f.ranges.size = size
	r := &ranged{t, newAgent(t, f), f, time.Unix(1000, 0)}
	txn := r.DB.WriteTxn(r.backs)
	for id := range uint32(3) {
		_, _, _ = r.backs.Insert(txn, &backends.Backend{Address: backAddress(id + 1), ID: id + 1, State: backends.Active})
	}
	txn.Commit()
	r.completeTables()
	return r
}

// policy is the part of a row about external clients.
type policy struct {
	deny   bool
	ranges string // separated by spaces; empty: all clients are allowed
}

func (p policy) prefixes() (list []netip.Prefix) {
	for text := range strings.FieldsSeq(p.ranges) {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// apply writes the row and makes a round.
func (r *ranged) apply(p policy, ids ...uint32) *frontends.Frontend {
	txn := r.DB.WriteTxn(r.Frontends.Table)
	_, _, _ = r.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 7, Service: "shop/web", Backends: ids, Outside: true,
		Ranges: p.prefixes(), Deny: p.deny, Status: reconciler.StatusPending()})
	txn.Commit()
	return r.round(0)
}

func (r *ranged) round(after time.Duration) *frontends.Frontend {
	r.now = r.now.Add(after)
	r.step(r.now)
	row, _, _ := r.Frontends.Table.Get(r.DB.ReadTxn(), frontends.ByAddress(frontAddress(1)))
	return row
}

// allows reports whether programs allow an external client. Programs of a previous build treat every range that they know as one that allows.
func (r *ranged) allows(client string, previous bool) bool {
	s := r.f.services.get(bpf.NewServiceKey(frontAddress(1), bpf.ScopeExternal))
	if s.Id == 0 || s.Flags&bpf.ServiceOutside == 0 || s.Flags&bpf.ServiceRanges == 0 {
		return s.Flags&bpf.ServiceOutside != 0
	}
	addr, deny := netip.MustParseAddr(client), !previous && s.Flags&bpf.ServiceRangesDeny != 0
	for _, key := range r.f.ranges.keys() {
		if is := bpf.SourceRangeOf(key); key.Service == s.Id && is.Deny == deny && is.Contains(addr) {
			return !deny
		}
	}
	return deny
}

const rangeA, rangeB, rangeC = "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"

var clientOf = map[string]string{rangeA: "192.0.2.9", rangeB: "198.51.100.9", rangeC: "203.0.113.9"}

// Without capacity for all ranges, a frontend that allows its ranges serves the clients of the written ranges. A frontend that denies its ranges serves no
// external client, but gets the backends of its row.
func TestFullMap_DenyRangesFailClosed(t *testing.T) {
	t.Parallel()
	for deny, served := range map[bool]bool{false: true, true: false} {
		r := newRanged(t, 1)
		row := r.apply(policy{deny, rangeA + " " + rangeB}, 1)
		if row.Status.Kind != reconciler.StatusKindError || !strings.Contains(row.Status.GetError(), "--bpf-lb-map-max") || row.InForce != served {
			t.Errorf("deny %t: in force %t, want %t; status %s: %s", deny, row.InForce, served, row.Status.Kind, row.Status.GetError())
		}
		if got := r.allows(clientOf[rangeA], false) || r.allows(clientOf[rangeB], false); got != served || deny && r.allows(clientOf[rangeC], false) {
			t.Errorf("deny %t: a client is allowed: %t, want %t", deny, got, served)
		}
	}
}

// A row that allowed range A and denies B and C, for which there is not enough capacity, allows no client of B, takes new backends, makes no writes while
// nothing changes, and is complete as soon as there is capacity.
func TestFullMap_AllowPolicyBecomesDeny(t *testing.T) {
	t.Parallel()
	r := newRanged(t, 2)
	if row := r.apply(policy{false, rangeA}, 1); !row.InForce || !r.allows(clientOf[rangeA], false) {
		t.Fatalf("at first: %s %s", row.Status.Kind, row.Status.GetError())
	}
	other := bpf.NewSourceRangeKey(99, bpf.SourceRange{Prefix: netip.MustParsePrefix(rangeA)})
	closed := func(when string, backend uint32) {
		t.Helper()
		for _, client := range clientOf {
			if r.allows(client, false) {
				t.Errorf("%s: %s is allowed", when, client)
			}
		}
		if list := r.f.list(r.f.services.get(bpf.NewServiceKey(frontAddress(1), bpf.ScopeExternal))); len(list) != 1 || list[0] != backend {
			t.Errorf("%s: backends %v, want %d", when, list, backend)
		}
	}
	deny := policy{true, rangeB + " " + rangeC}
	r.f.ranges.after = func() { // another frontend takes the freed entries
		if keys := r.f.ranges.keys(); len(keys) < r.f.ranges.size {
			r.f.ranges.entries[other] = 1
		}
	}
	row := r.apply(deny, 1)
	if row.Status.Kind != reconciler.StatusKindError || row.InForce {
		t.Errorf("status %s, in force %t", row.Status.Kind, row.InForce)
	}
	closed("without capacity", 1)
	r.apply(deny, 2)
	closed("with another backend", 2)
	for range 3 {
		r.round(2 * quarantine)
	}
	before := r.f.services.count()
	for range 10 {
		r.round(2 * quarantine)
	}
	if n := r.f.services.count() - before; n != 0 || len(r.writer.known.waiting) != 0 {
		t.Errorf("%d writes of the entry while nothing changes, %d in quarantine", n, len(r.writer.known.waiting))
	}
	closed("after some retries", 2)
	r.f.ranges.size = 9
	if row := r.round(2 * maxRetry); row.Status.Kind != reconciler.StatusKindDone || !row.InForce {
		t.Errorf("with capacity: %s %s", row.Status.Kind, row.Status.GetError())
	}
	for within, client := range clientOf {
		if want := within == rangeA; r.allows(client, false) != want {
			t.Errorf("with capacity: %s is allowed: %t", client, !want)
		}
	}
}

// While a policy changes, each client is allowed only if the previous policy or the next one allows it, after each single write. Programs of a previous
// build, which know no ranges that deny, never allow a client that the policy denies.
func TestPolicyChange_ClientExcludedByBoth_StaysDenied(t *testing.T) {
	t.Parallel()
	policies := []policy{{false, rangeA}, {true, rangeA}, {false, rangeB}, {true, rangeB}, {false, rangeA + " " + rangeB}, {true, rangeA + " " + rangeB}, {}}
	allows := func(p policy, within string) bool {
		return p.ranges == "" || strings.Contains(p.ranges, within) != p.deny
	}
	for _, before := range policies {
		for _, after := range policies {
			r := newRanged(t, 20)
			r.apply(before, 1)
			check := func() {
				for within, client := range clientOf {
					if r.allows(client, false) && !allows(before, within) && !allows(after, within) {
						t.Errorf("%+v to %+v: a client in %s is allowed", before, after, within)
					}
					if (before.deny || after.deny) && r.allows(client, true) && !allows(before, within) && !allows(after, within) {
						t.Errorf("%+v to %+v: a client in %s is allowed by programs of a previous build", before, after, within)
					}
				}
			}
			check()
			r.f.ranges.after, r.f.services.after = check, check
			r.apply(after, 1)
			r.round(2 * quarantine)
			r.round(2 * quarantine)
			for within, client := range clientOf {
				if got := r.allows(client, false); got != allows(after, within) {
					t.Errorf("%+v to %+v: in the end a client in %s is allowed: %t", before, after, within, got)
				}
			}
			if n := len(r.f.ranges.keys()); n != len(after.prefixes()) {
				t.Errorf("%+v to %+v: %d ranges in the map", before, after, n)
			}
		}
	}
}

// The flag of a frontend selects the ranges that deny. Without ranges no client is denied.
func TestValueOf_DenyRanges(t *testing.T) {
	t.Parallel()
	some := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for _, c := range []struct {
		ranges []netip.Prefix
		deny   bool
		want   uint32
	}{{some, true, uint32(bpf.ServiceRanges | bpf.ServiceRangesDeny)}, {some, false, uint32(bpf.ServiceRanges)}, {nil, true, 0}} {
		v := valueOf(&frontends.Frontend{ID: 1, Kind: frontends.LoadBalancer, Ranges: c.ranges, Deny: c.deny}, bpf.ScopeExternal)
		if uint32(v.Flags) != c.want {
			t.Errorf("%v, deny %t: got flags %b, want %b", c.ranges, c.deny, v.Flags, c.want)
		}
	}
}
