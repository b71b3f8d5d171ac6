package podclaims

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// Random objects claim few addresses, so that several objects claim the same address. All methods agree with a list of the rows.
func TestClaims_AgreeWithList(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	c := &Claims{}
	var rows []*cilium.Endpoint // in the order of insertion
	for range 5000 {
		f := cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", random.IntN(20)), Created: random.Int64N(3)}
		for range random.IntN(3) {
			f.Addrs = append(f.Addrs, addr(random.IntN(6)))
		}
		ep := cilium.NewEndpoint(f)
		before := slices.IndexFunc(rows, func(o *cilium.Endpoint) bool { return o.Key() == ep.Key() })
		var want, got *cilium.Endpoint
		if before >= 0 {
			want = rows[before]
			rows = slices.Delete(rows, before, before+1)
		}
		if random.IntN(4) == 0 {
			got = c.Delete(ep)
		} else {
			got = c.Put(ep)
			rows = append(rows, ep)
		}
		require.Same(t, want, got)
		for i := range 6 {
			list := slices.DeleteFunc(slices.Clone(rows), func(o *cilium.Endpoint) bool { return !o.Has(addr(i)) })
			slices.SortStableFunc(list, func(a, b *cilium.Endpoint) int { return cmp.Compare(a.Created(), b.Created()) })
			slices.Reverse(list)
			require.Equal(t, list, append([]*cilium.Endpoint{}, slices.Collect(c.At(addr(i)))...))
		}
	}
}

// Adding a pod allocates nothing, except when a hash table grows.
func TestClaims_PodsAllocateNothing(t *testing.T) {
	const pods = 20000
	rows := make([]*cilium.Endpoint, pods)
	for i := range rows {
		rows[i] = cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", i), Addrs: []netip.Addr{addr(i)}})
	}
	allocations := testing.AllocsPerRun(1, func() {
		c := &Claims{}
		for _, ep := range rows {
			c.Put(ep)
		}
	})
	require.Less(t, allocations, pods/10.0)
}
