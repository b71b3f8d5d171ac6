package ipcachemaps

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// The object of an address's current claim is known until another object claims the address, regardless of changes of the objects.
func TestPods_ClaimKeptUntilNextClaim(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	p, model, rows := newPods(), map[netip.Addr]*cilium.Endpoint{}, map[string]*cilium.Endpoint{}
	some := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(8))}) }
	marked := 0
	for range 20_000 {
		switch random.IntN(3) {
		case 0:
			f := cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", random.IntN(10)), Created: random.Int64N(3)}
			for range random.IntN(3) {
				f.Addrs = append(f.Addrs, some())
			}
			ep := cilium.NewEndpoint(f)
			change := statedb.Change[*cilium.Endpoint]{Object: ep, Deleted: random.IntN(3) == 0}
			if rows[ep.Key()] = ep; change.Deleted {
				delete(rows, ep.Key())
			}
			p.apply(change, map[netip.Addr]struct{}{})
		case 1:
			addr := some()
			for ep := range p.At(addr) {
				p.claim(addr, ep)
				model[addr] = ep
				if random.IntN(2) == 0 {
					break // the remaining objects are ignored
				}
			}
		default:
			addr := some()
			p.claim(addr, nil)
			delete(model, addr)
		}
		for i := range byte(8) {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, i})
			require.Same(t, model[addr], p.claimedBy(addr))
			if p.Sole().Marked(addr) != nil {
				marked++
			}
			claimants := 0
			for _, ep := range rows {
				if ep.Has(addr) {
					claimants++
				}
			}
			require.Equal(t, claimants > 0, p.Claimed(addr))
		}
		require.Equal(t, len(model), p.addresses)
	}
	require.NotZero(t, marked)
}
