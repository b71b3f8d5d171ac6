package servicemaps

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
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
