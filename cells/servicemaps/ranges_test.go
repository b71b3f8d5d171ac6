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

// Whoever names clients of one family says nothing of the other. Its address admits nobody, as in Cilium, rather than everybody, as
// kube-proxy has it: a range that was forgotten must not open the service.
func TestValueOf_RangesOfTheOtherFamilyAdmitNobody(t *testing.T) {
	t.Parallel()
	only4 := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for addr, ranges := range map[string][]netip.Prefix{"203.0.113.7": only4, "2001:db8:7::7": only4, "203.0.113.8": nil, "2001:db8:7::8": nil} {
		row := &frontends.Frontend{Address: loadbalancer.Address{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: loadbalancer.TCP},
			ID: 1, Kind: frontends.LoadBalancer, Outside: true, Ranges: ranges}
		if asks := valueOf(row, bpf.ScopeExternal).Flags&bpf.ServiceRanges != 0; asks != (ranges != nil) {
			t.Errorf("%s with ranges %v: asks where clients are: %t", addr, ranges, asks)
		}
	}
}

// Without room for all ranges, a frontend that allows its ranges admits the clients of those that found room. One that denies them does not come
// into force, or else the clients of the others would be served.
func TestFullMap_RangesThatDenyFailClosed(t *testing.T) {
	t.Parallel()
	for deny, served := range map[bool]bool{false: true, true: false} {
		f := newFakes(20, 8, 0)
		f.ranges.size = 1
		a := newAgent(t, f)
		txn := a.DB.WriteTxn(a.Frontends.Table, a.backs)
		_, _, _ = a.backs.Insert(txn, &backends.Backend{Address: backAddress(1), ID: 1, State: backends.Active})
		_, _, _ = a.Frontends.Table.Insert(txn, &frontends.Frontend{Address: frontAddress(1), ID: 7, Service: "shop/web", Backends: []uint32{1}, Outside: true,
			Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")}, Deny: deny, Status: reconciler.StatusPending()})
		txn.Commit()
		a.completeTables()
		a.step(time.Unix(1000, 0))
		row, _, _ := a.Frontends.Table.Get(a.DB.ReadTxn(), frontends.ByAddress(frontAddress(1)))
		if got := len(f.services.keys()) == 1; got != served || row.Status.Kind != reconciler.StatusKindError || !strings.Contains(row.Status.GetError(), "--bpf-lb-map-max") {
			t.Errorf("deny %t: in force %t, want %t; status %s: %s", deny, got, served, row.Status.Kind, row.Status.GetError())
		}
	}
}

// Ranges that deny are the same entries; the frontend's flag says what they mean. Without ranges nobody is denied.
func TestValueOf_RangesThatDeny(t *testing.T) {
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
