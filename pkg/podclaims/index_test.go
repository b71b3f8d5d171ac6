package podclaims

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// An index that grows and shrinks agrees with a map.
func TestIndex_AgreesWithAMap(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	x, model := &Index{}, map[netip.Addr]*cilium.Endpoint{}
	for step := range 60_000 {
		many := 20 + 2000*(step/10_000%2) // alternately few and many
		addrs := []netip.Addr{addr(random.IntN(many)), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(many))})}
		one := addrs[random.IntN(2)]
		if random.IntN(3) == 0 || len(model) > many {
			x.Delete(one)
			delete(model, one)
		} else {
			ep := cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint(step), Addrs: addrs})
			x.Set(one, ep)
			model[one] = ep
		}
		for len(model) > many { // from many to few
			for rest := range model {
				x.Delete(rest)
				delete(model, rest)
				break
			}
		}
		require.Equal(t, len(model), x.used)
		require.Same(t, model[one], x.Get(one))
		if step%500 == 0 {
			for i := range 2020 {
				require.Same(t, model[addr(i)], x.Get(addr(i)))
			}
			for one, want := range model {
				require.Same(t, want, x.Get(one))
			}
			require.LessOrEqual(t, len(x.slots), max(fewSlots, 4*x.used+8))
		}
	}
}

// claimBytes limits the memory of a pod's claim in bytes, without its row.
const claimBytes = 56

func TestClaims_BytesOfAPod(t *testing.T) {
	const pods = 50_000
	rows := make([]*cilium.Endpoint, pods)
	for i := range rows {
		rows[i] = cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", i), Addrs: []netip.Addr{addr(i)}})
	}
	before := heap()
	c := &Claims{}
	for _, ep := range rows {
		c.Put(ep)
	}
	each := (heap() - before) / pods
	t.Logf("%d bytes", each)
	require.LessOrEqual(t, each, uint64(claimBytes))
	runtime.KeepAlive(c)
	runtime.KeepAlive(rows)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
