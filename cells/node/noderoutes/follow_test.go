package noderoutes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// table is a fake of desired-routes. While broken is set, writes fail.
type table struct {
	routes   map[string]desiredroutes.Route
	replaced bool
	broken   bool
	calls    int
}

func (*table) Expect(string) {}

func (w *table) Replace(_ string, routes []desiredroutes.Route) error {
	if w.broken {
		return fmt.Errorf("broken")
	}
	clear(w.routes)
	w.replaced = true
	return w.Update("", routes, nil)
}

func (w *table) Update(_ string, put, remove []desiredroutes.Route) error {
	if w.broken {
		return fmt.Errorf("broken")
	}
	w.calls++
	for _, r := range remove {
		delete(w.routes, r.Key())
	}
	for _, r := range put {
		w.routes[r.Key()] = r
	}
	return nil
}

// rig is a [routing] without a goroutine. The test fills its tables and calls its rounds.
type rig struct {
	*routing
	table   *table
	nodes   statedb.RWTable[*nodes.Node]
	kernel  statedb.RWTable[*devices.Route]
	devices statedb.RWTable[*devices.Device]
	local   statedb.RWTable[*localnode.LocalNode]
	mtus    statedb.RWTable[mtus.MTU]
	tests   statedb.RWTable[*pathtests.Test]
	slots   statedb.RWTable[*nodeslots.Slot]
}

func newRig(tb testing.TB, mode string) *rig {
	tb.Helper()
	db := statedb.New()
	r := &rig{table: &table{routes: map[string]desiredroutes.Route{}}}
	var errs [7]error
	r.nodes, errs[0] = nodes.NewTable(db)
	r.kernel, errs[1] = devices.NewRouteTable(db)
	r.devices, errs[2] = devices.NewTable(db)
	r.local, errs[3] = localnode.NewTable(db)
	r.mtus, errs[4] = mtus.NewTable(db)
	r.tests, errs[5] = pathtests.NewTable(db)
	r.slots, errs[6] = nodeslots.NewTable(db)
	for _, err := range errs {
		require.NoError(tb, err)
	}
	p := params{Config: Config{AutoDirectNodeRoutes: mode == agentconfig.RoutingNative, DirectRoutingSkipUnreachable: true}, DB: db, Nodes: r.nodes, Routes: r.kernel,
		Devices: r.devices, LocalNode: r.local, MTUs: r.mtus, PathTests: r.tests, Slots: r.slots, Desired: r.table}
	if p.Agent.Hybrid = mode == agentconfig.RoutingHybrid; mode != agentconfig.RoutingNative {
		p.Agent.TunnelPort = 8472
	}
	var err error
	r.routing, err = follow(p)
	require.NoError(tb, err)
	tb.Cleanup(r.close)
	return r
}

// wanted returns all desired routes.
func (r *rig) wanted() map[string]desiredroutes.Route { return r.routing.routes }

// set changes tables in one commit.
func (r *rig) set(change func(statedb.WriteTxn)) statedb.ReadTxn {
	txn := r.DB.WriteTxn(r.nodes, r.kernel, r.devices, r.local, r.mtus, r.tests, r.slots)
	change(txn)
	return txn.Commit()
}

// change changes one row at random.
func (r *rig) change(t *testing.T, txn statedb.WriteTxn, random *rand.Rand) {
	t.Helper()
	name, deleted := string(rune('a'+random.IntN(6))), random.IntN(4) == 0
	switch random.IntN(12) {
	case 0:
		self := &localnode.LocalNode{Name: "a", Ready: random.IntN(4) > 0, IPv4: localnode.Family{Router: netip.MustParseAddr("10.9.0.1")}}
		if random.IntN(2) == 0 {
			self.IPv6.Router = netip.MustParseAddr("fd09::1")
		}
		celltest.PutRow(t, txn, r.local, self, false)
	case 1:
		celltest.PutRow(t, txn, r.mtus, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450 - random.IntN(2)}, false)
	case 2:
		celltest.PutRow(t, txn, r.devices, &devices.Device{Index: 2 + random.IntN(2), Name: fmt.Sprint("eth", random.IntN(3))}, deleted)
	case 3:
		route := &devices.Route{Table: 254, Dst: netip.MustParsePrefix([]string{"192.0.2.0/24", "10.1.0.0/24", "0.0.0.0/0", "2001:db8::/64"}[random.IntN(4)]), LinkIndex: 2 + random.IntN(2),
			Type: 1, Protocol: uint8([]int{2, 2, desiredroutes.Protocol}[random.IntN(3)])}
		if route.Dst.Bits() == 0 {
			route.Gw = netip.MustParseAddr("192.0.2.254")
		}
		celltest.PutRow(t, txn, r.kernel, route, deleted)
	case 4:
		celltest.PutRow(t, txn, r.tests, &pathtests.Test{Node: name, Kind: pathtests.Size, State: pathtests.Failed, Fault: pathtests.Large, Bytes: 1300 + random.IntN(2)}, deleted)
	case 5, 6:
		celltest.PutRow(t, txn, r.slots, &nodeslots.Slot{ID: uint16(name[0]), Node: name, Direct: random.IntN(2) == 0}, deleted)
	default:
		n := &nodes.Node{Name: name, Source: nodes.Kubernetes}
		if name == "a" {
			n.Source = nodes.Local
		}
		for _, text := range []string{"192.0.2.2", "198.51.100.2", "2001:db8::2"} {
			if random.IntN(2) == 0 {
				n.Addresses = append(n.Addresses, nodes.Address{Type: nodes.InternalIP, Addr: netip.MustParseAddr(text)})
			}
		}
		for range random.IntN(3) {
			p, _ := netip.AddrFrom4([4]byte{10, byte(random.IntN(4)), byte(random.IntN(4)), 0}).Prefix(22 + random.IntN(3))
			if random.IntN(4) == 0 {
				p, _ = netip.AddrFrom16([16]byte{0xfd, 7: byte(random.IntN(4))}).Prefix(64)
			}
			n.CIDRs = append(n.CIDRs, p)
		}
		celltest.PutRow(t, txn, r.nodes, n, deleted)
	}
}

// TestRouting_MatchesFullRead changes rows at random and compares the routes with the routes of a new reader. The table gets all routes, also after
// failed writes, and no write without a change. A run covers one order in which the networks and the tunnel of this node become known; its rounds cover changes
// of six nodes.
func TestRouting_MatchesFullRead(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{agentconfig.RoutingNative, agentconfig.RoutingTunnel, agentconfig.RoutingHybrid} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			routes, faults, skipped, past, merged := 0, 0, 0, 0, 0
			for run := range 12 {
				r := newRig(t, mode)
				if run%3 == 0 {
					r.limit = 4 // the covers exceed this limit in some rounds
				}
				held := map[string]bool{} // routes of the previous run in the kernel take precedence over these
				for i := range 300 {
					complete := i >= 100
					now := r.set(func(txn statedb.WriteTxn) {
						for range 1 + random.IntN(2) {
							r.change(t, txn, random)
						}
					})
					usable := r.upTo(now, statedb.NewWatchSet())
					whole, err := follow(r.params)
					require.NoError(t, err)
					whole.limit = r.limit
					require.Equal(t, usable, whole.upTo(now, statedb.NewWatchSet()))
					whole.close()
					if !usable {
						continue
					}
					require.Equal(t, whole.routes, r.wanted())
					require.Equal(t, whole.hops, r.hops)
					require.Equal(t, whole.faults, r.faults)
					require.Equal(t, whole.skipped, r.skipped)
					r.table.broken = random.IntN(8) == 0
					calls := r.table.calls
					idle := r.synced && complete && len(r.put)+len(r.remove) == 0
					left := r.left()
					for key := range r.put {
						route := r.routes[key]
						gateway, found := left[kernelKey(route)]
						held[key] = found && route.Gw.IsValid() && gateway != route.Gw
					}
					if err := r.routing.write(complete); err == nil && complete {
						require.Equal(t, whole.routes, r.table.routes, "round %d", i)
						require.True(t, r.table.replaced)
					} else if err == nil {
						for key, route := range whole.routes {
							if !held[key] {
								require.Equal(t, route, r.table.routes[key])
							}
						}
						require.False(t, r.table.replaced)
					}
					require.False(t, idle && calls != r.table.calls)
					r.table.broken = false
					routes, faults, skipped, past = routes+len(whole.routes), faults+len(whole.faults), skipped+len(whole.skipped), past+whole.hops
					merged += len(r.merged)
				}
			}
			require.NotZero(t, routes)
			require.NotZero(t, faults)
			require.Equal(t, mode == agentconfig.RoutingNative, skipped > 0)
			require.NotZero(t, past)
			require.Equal(t, mode != agentconfig.RoutingNative, merged > 0)
		})
	}
}

// BenchmarkNodeJoins measures the rounds for a node that is added and removed beside 5,000 others, with a tunnel also with fragmented ranges.
func BenchmarkNodeJoins(b *testing.B) {
	for _, c := range []struct {
		name, mode string
		step       int
	}{{"native", agentconfig.RoutingNative, 1}, {"tunnel", agentconfig.RoutingTunnel, 1}, {"tunnel, no ranges adjoin", agentconfig.RoutingTunnel, 3}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, c.mode)
			row := func(i int) *nodes.Node {
				i *= c.step
				return &nodes.Node{Name: fmt.Sprint("node-", i), Source: nodes.Kubernetes, CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
					Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}}}
			}
			r.set(func(txn statedb.WriteTxn) {
				celltest.PutRow(b, txn, r.local, &localnode.LocalNode{Name: "self", Ready: true, IPv4: localnode.Family{Router: netip.MustParseAddr("10.255.0.1")}}, false)
				celltest.PutRow(b, txn, r.mtus, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450}, false)
				celltest.PutRow(b, txn, r.devices, &devices.Device{Index: 2, Name: "eth0"}, false)
				celltest.PutRow(b, txn, r.kernel, &devices.Route{Table: 254, Dst: netip.MustParsePrefix("172.16.0.0/12"), LinkIndex: 2, Type: 1, Protocol: 2}, false)
				for i := range 5000 {
					celltest.PutRow(b, txn, r.nodes, row(i), false)
				}
			})
			round := func() {
				require.True(b, r.upTo(r.DB.ReadTxn(), statedb.NewWatchSet()))
				require.NoError(b, r.routing.write(true))
			}
			round()
			if c.mode == agentconfig.RoutingTunnel {
				require.LessOrEqual(b, len(r.wanted()), maxRoutes)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, deleted := range []bool{false, true} {
					r.set(func(txn statedb.WriteTxn) { celltest.PutRow(b, txn, r.nodes, row(5000), deleted) })
					round()
				}
			}
		})
	}
}
