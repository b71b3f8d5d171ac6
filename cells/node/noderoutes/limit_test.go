package noderoutes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// slot returns range i of a pool that is divided into ranges of a prefix length.
func slot(pool netip.Prefix, bits int, i uint64) netip.Prefix {
	bytes := pool.Addr().As16()
	shift := 128 - bits
	if pool.Addr().Is4() {
		shift = 32 - bits
	}
	for at := 0; at < 64; at++ {
		if i>>at&1 == 1 {
			bytes[15-(at+shift)/8] |= 1 << ((at + shift) % 8)
		}
	}
	addr := netip.AddrFrom16(bytes)
	if pool.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits)
}

// allocation is a random cluster in tunnel mode: ranges of nodes from a pool of each family, and networks of this node in unused slots of the pools.
type allocation struct {
	nodes []*nodes.Node
	less  map[string]int // packet size in bytes that a path with a reduced size carries, by node
	own   []netip.Prefix // subnets of this node
}

// allocate assigns random ranges of each family to count nodes. networks is the number of slots of each pool with subnets of this node.
func allocate(random *rand.Rand, count, networks int) (a allocation) {
	pools := []struct {
		pool netip.Prefix
		bits int
	}{{netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 8+random.IntN(5)), 20 + random.IntN(5)}, {netip.MustParsePrefix("fd00:1:2::/48"), 56 + random.IntN(9)}}
	a.less = map[string]int{}
	for i := range count {
		n := &nodes.Node{Name: fmt.Sprint("n", i), Source: nodes.Kubernetes}
		a.nodes = append(a.nodes, n)
		if random.IntN(20) == 0 {
			a.less[n.Name] = 1300 + random.IntN(4)
		}
	}
	for _, p := range pools {
		slots := uint64(1) << (p.bits - p.pool.Bits())
		seen := map[uint64]bool{}
		var free []netip.Prefix
		for len(seen) < min(count+networks, int(slots)) {
			if i := random.Uint64N(slots); !seen[i] {
				seen[i], free = true, append(free, slot(p.pool, p.bits, i))
			}
		}
		a.own = append(a.own, free[:networks]...)
		for i, r := range free[networks:] {
			a.nodes[i].CIDRs = append(a.nodes[i].CIDRs, r)
		}
	}
	for i, p := range a.own { // nodes are in these networks
		a.nodes[i%count].Addresses = append(a.nodes[i%count].Addresses, nodes.Address{Type: nodes.InternalIP, Addr: p.Addr().Next()})
	}
	return a
}

// rig fills the tables with the cluster and computes the routes.
func (a allocation) rig(tb testing.TB) *rig {
	tb.Helper()
	r := newRig(tb, agentconfig.RoutingTunnel)
	r.set(func(txn statedb.WriteTxn) {
		celltest.PutRow(tb, txn, r.local, &localnode.LocalNode{Name: "self", Ready: true, IPv4: localnode.Family{Router: netip.MustParseAddr("192.0.2.1")},
			IPv6: localnode.Family{Router: netip.MustParseAddr("2001:db8::1")}}, false)
		celltest.PutRow(tb, txn, r.mtus, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450}, false)
		celltest.PutRow(tb, txn, r.devices, &devices.Device{Index: 2, Name: "eth0"}, false)
		for _, p := range a.own {
			celltest.PutRow(tb, txn, r.kernel, &devices.Route{Table: desiredroutes.MainTable, Dst: p, LinkIndex: 2, Type: unix.RTN_UNICAST}, false)
		}
		for _, n := range a.nodes {
			celltest.PutRow(tb, txn, r.nodes, n, false)
		}
		for name, size := range a.less {
			celltest.PutRow(tb, txn, r.tests, &pathtests.Test{Node: name, Kind: pathtests.Size, State: pathtests.Failed, Fault: pathtests.Large, Bytes: size}, false)
		}
	})
	require.True(tb, r.upTo(r.DB.ReadTxn(), statedb.NewWatchSet()))
	require.Empty(tb, r.faults)
	return r
}

// There are at most 64 routes for fragmented ranges. They cover each range, with a size that the path to its node carries, and no network of this node. They
// equal the exact cover if the cover has at most 64 prefixes.
func TestRouting_FragmentedRanges_AtMost64Routes(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	const clusters = 200
	merged := 0
	for range clusters {
		a := allocate(random, 1+random.IntN(400), random.IntN(3))
		r := a.rig(t)
		routes, bySize := slices.Collect(maps.Values(r.wanted())), map[int][]netip.Prefix{}
		for _, n := range a.nodes {
			size := r.size(n.Name)
			bySize[size] = append(bySize[size], n.CIDRs...)
			for _, p := range n.CIDRs {
				leads := func(route desiredroutes.Route) bool {
					return route.Dst.Bits() <= p.Bits() && route.Dst.Contains(p.Addr()) && route.MTU <= size
				}
				if !slices.ContainsFunc(routes, leads) {
					t.Fatalf("no route of at most %d bytes leads to %s in %v", size, p, routes)
				}
			}
		}
		exact := 0
		for _, ranges := range bySize {
			exact += len(cover(ranges))
		}
		if want := min(exact, maxRoutes); len(routes) != want {
			t.Fatalf("%d routes, want %d: the exact cover has %d", len(routes), want, exact)
		}
		if exact > maxRoutes {
			merged++
		}
		for _, route := range routes {
			for _, p := range a.own {
				if route.Dst.Overlaps(p) {
					t.Fatalf("route %s leads to network %s of this node", route.Dst, p)
				}
			}
			for _, other := range routes {
				if exact > maxRoutes && route.Dst != other.Dst && route.Dst.Overlaps(other.Dst) {
					t.Fatalf("routes %s and %s overlap", route.Dst, other.Dst)
				}
			}
		}
	}
	if merged == 0 || merged == clusters {
		t.Errorf("%d of %d clusters have more ranges than routes: the test shows nothing", merged, clusters)
	}
}

// every returns 100 ranges of /24 at a distance of step slots.
func every(step uint64, pool string) (ranges []netip.Prefix) {
	for i := range uint64(100) {
		ranges = append(ranges, slot(netip.MustParsePrefix(pool), 24, step*i))
	}
	return ranges
}

// No route covers networks of this node and addresses of nodes between the ranges, even if the number of routes then exceeds the limit.
func TestRouting_NodeAddressesBetweenRanges_NotCovered(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int{nodes.ExternalIP: 100, nodes.InternalIP: 100, nodes.CiliumInternalIP: maxRoutes} {
		n := &nodes.Node{Name: "n", Source: nodes.Kubernetes, CIDRs: every(2, "10.0.0.0/8")}
		for _, p := range n.CIDRs {
			bytes := p.Addr().As4()
			bytes[2]++
			n.Addresses = append(n.Addresses, nodes.Address{Type: kind, Addr: netip.AddrFrom4(bytes)})
		}
		if got := len(allocation{nodes: []*nodes.Node{n}}.rig(t).wanted()); got != want {
			t.Errorf("with addresses of type %s: %d routes, want %d", kind, got, want)
		}
	}
}

// Ranges whose common prefix is wider than the bound keep their own routes.
func TestRouting_RangesFarApart_AreNotMerged(t *testing.T) {
	t.Parallel()
	n := &nodes.Node{Name: "n", Source: nodes.Kubernetes, CIDRs: every(1<<(24-widestIPv4), "0.0.0.0/0")}
	if got := len(allocation{nodes: []*nodes.Node{n}}.rig(t).wanted()); got != 100 {
		t.Errorf("%d routes, want 100", got)
	}
}

// The nearest ranges are merged first.
func TestMergeFamilies_NearestFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    []string
		limit int
		want  []string
	}{
		"a hole":                 {[]string{"10.0.0.0/24", "10.0.2.0/23", "10.9.0.0/24"}, 2, []string{"10.0.0.0/22", "10.9.0.0/24"}},
		"the second pair":        {[]string{"10.0.0.0/24", "10.0.9.0/24", "10.1.0.0/24", "10.1.2.0/24"}, 3, []string{"10.0.0.0/24", "10.0.9.0/24", "10.1.0.0/22"}},
		"siblings cost nothing":  {[]string{"10.0.0.0/24", "10.0.1.0/24", "10.0.3.0/24"}, 2, []string{"10.0.0.0/23", "10.0.3.0/24"}},
		"one inside of another":  {[]string{"10.0.0.0/16", "10.0.1.0/24", "10.2.0.0/24"}, 2, []string{"10.0.0.0/16", "10.2.0.0/24"}},
		"a junction of junction": {[]string{"10.0.0.0/24", "10.0.2.0/24", "10.0.4.0/24", "10.128.0.0/24"}, 2, []string{"10.0.0.0/21", "10.128.0.0/24"}},
		"IPv6":                   {[]string{"fd00::/64", "fd00:0:0:2::/64", "fd00:0:0:f::/64"}, 2, []string{"fd00:0:0:f::/64", "fd00::/62"}},
	} {
		var in []covered
		for _, p := range prefixes(c.in) {
			in = append(in, covered{p, 1450})
		}
		var got []string
		for _, r := range mergeFamilies(in, c.limit, func(netip.Prefix) bool { return false }) {
			got = append(got, r.prefix.String())
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
