package servicecontroller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestResidents_Model compares with a set that is computed from all endpoints and pods each time.
func TestResidents_Model(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(12))}) }
	r := newResidents()
	eps, pods, own := map[uint16]*endpoints.Endpoint{}, map[string]*k8s.Pod{}, []netip.Addr{addr()}
	before := map[netip.Addr]bool{}
	for range 2000 {
		switch random.IntN(4) {
		case 0:
			ep := &endpoints.Endpoint{ID: uint16(random.IntN(5))}
			if random.IntN(3) > 0 {
				ep.IPv4 = addr()
			}
			eps[ep.ID] = ep
			r.endpoint(ep, false)
		case 1:
			if ids := slices.Sorted(maps.Keys(eps)); len(ids) > 0 {
				id := ids[random.IntN(len(ids))]
				r.endpoint(eps[id], true)
				delete(eps, id)
			}
		case 2:
			p := &k8s.Pod{Namespace: "a", Name: fmt.Sprint(random.IntN(5)), PodIPs: []netip.Addr{addr(), addr()}, Phase: []string{"Running", "Failed"}[random.IntN(2)]}
			pods[p.Key()] = p
			r.pod(p, false)
		case 3:
			if names := slices.Sorted(maps.Keys(pods)); len(names) > 0 {
				name := names[random.IntN(len(names))]
				r.pod(pods[name], true)
				delete(pods, name)
			}
		}
		if random.IntN(3) > 0 {
			continue // the next comparison covers several changes
		}
		if random.IntN(5) == 0 {
			own = []netip.Addr{addr()}
		}
		now := map[netip.Addr]bool{own[0]: true}
		for _, ep := range eps {
			if ep.IPv4.IsValid() {
				now[ep.IPv4] = true
			}
		}
		for _, p := range pods {
			for _, a := range p.PodIPs {
				if !p.Ended() {
					now[a] = true
				}
			}
		}
		want := map[netip.Addr]bool{}
		for _, sets := range [][2]map[netip.Addr]bool{{before, now}, {now, before}} {
			for a := range sets[0] {
				if !sets[1][a] {
					want[a] = true
				}
			}
		}
		got := r.moved(own)
		slices.SortFunc(got, netip.Addr.Compare)
		require.Equal(t, slices.SortedFunc(maps.Keys(want), netip.Addr.Compare), slices.Clip(got))
		for i := range 12 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			require.Equal(t, now[a], r.has(a), "%s", a)
		}
		before = now
	}
	r.moved(own)
	require.Empty(t, r.moved(own), "without a change")
}
