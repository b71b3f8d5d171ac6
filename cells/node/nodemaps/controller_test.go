package nodemaps

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rig is the controller without its goroutine, over tables that a test fills.
type rig struct {
	*controller
	in       inputs
	complete func(statedb.WriteTxn) // completes the table nodes
}

func newRig(tb testing.TB, tunnel bool) *rig {
	tb.Helper()
	db := statedb.New()
	table, err1 := nodeslots.NewTable(db)
	all, err2 := nodes.NewTable(db)
	ids, err3 := nodeids.NewTable(db)
	tunnels, err4 := overlays.NewTable(db)
	tests, err5 := pathtests.NewTable(db)
	paths, err6 := nodepaths.NewTable(db)
	links, err7 := devices.NewTable(db)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(all)
	complete := all.RegisterInitializer(txn, "test")
	txn.Commit()
	a := agentconfig.Agent{NodeName: "a", EnableIPv4: true, EnableIPv6: true}
	if tunnel {
		a.TunnelPort = 8472
	}
	c := newController(params{DB: db, Agent: a, Table: table, Nodes: all, IDs: ids, Overlays: tunnels, Tests: tests, Paths: paths, Devices: links})
	require.NoError(tb, c.subscribe())
	tb.Cleanup(c.close)
	return &rig{c, inputs{Nodes: all, IDs: ids, Overlays: tunnels, Tests: tests, Paths: paths, Devices: links}, complete}
}

// write changes tables in one commit and runs a round.
func (r *rig) write(tb testing.TB, change func(statedb.WriteTxn)) {
	tb.Helper()
	txn := r.DB.WriteTxn(r.in.Nodes, r.in.IDs, r.in.Overlays, r.in.Tests, r.in.Paths, r.in.Devices)
	change(txn)
	txn.Commit()
	require.NoError(tb, r.round(r.DB.ReadTxn(), statedb.NewWatchSet()))
}

// change changes one random row.
func (r *rig) change(t *testing.T, txn statedb.WriteTxn, random *rand.Rand) {
	t.Helper()
	name, deleted := string(rune('a'+random.IntN(5))), random.IntN(4) == 0
	addrs := []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(4))})},
		{Type: nodes.InternalIP, Addr: netip.AddrFrom16([16]byte{0xfd, 15: byte(random.IntN(4))})}}
	switch random.IntN(7) {
	case 0, 1:
		n := &nodes.Node{Name: name, Source: nodes.Kubernetes, Addresses: addrs[random.IntN(2) : 1+random.IntN(2)]}
		if name == "a" {
			n.Source = nodes.Local
		}
		celltest.PutRow(t, txn, r.in.Nodes, n, deleted)
	case 2, 3:
		row := &nodeids.NodeID{ID: uint16(1 + random.IntN(8)), Name: name}
		if old, _, found := r.in.IDs.Get(txn, nodeids.ByName(name)); found { // a name has one id
			celltest.PutRow(t, txn, r.in.IDs, old, true)
		}
		if random.IntN(4) == 0 {
			row.Released = row.Released.AddDate(2026, 0, 0)
		}
		celltest.PutRow(t, txn, r.in.IDs, row, deleted)
	case 4:
		mode := []nodepaths.Mode{nodepaths.Direct, nodepaths.Tunnel}[random.IntN(2)]
		celltest.PutRow(t, txn, r.in.Paths, &nodepaths.Path{Node: name, Mode: mode}, deleted)
	case 5:
		if random.IntN(3) == 0 {
			d := &devices.Device{Index: 20, Name: podlink.ChecksumDevice, Group: podlink.OverlayGroup, Up: random.IntN(3) > 0}
			celltest.PutRow(t, txn, r.in.Devices, d, deleted)
			return
		}
		test := &pathtests.Test{Node: name, Kind: pathtests.Checksum, State: pathtests.Failed, Fault: pathtests.Corrupted}
		celltest.PutRow(t, txn, r.in.Tests, test, deleted)
	default:
		if random.IntN(3) > 0 {
			test := &pathtests.Test{Node: name, Kind: pathtests.Size, State: pathtests.Failed, Fault: pathtests.Large, Bytes: 1300 + random.IntN(2)}
			celltest.PutRow(t, txn, r.in.Tests, test, deleted)
			return
		}
		o := &overlays.Overlay{Device: "tunnel", Source: addrs[random.IntN(2)].Addr}
		if random.IntN(4) == 0 {
			o.Source, o.Second = netip.Addr{}, netip.Addr{}
		}
		celltest.PutRow(t, txn, r.in.Overlays, o, random.IntN(8) == 0)
	}
}

// whole computes the rows of all ids. It reports false while no row may be written.
func (r *rig) whole(txn statedb.ReadTxn) (rows []*nodeslots.Slot, known bool) {
	complete, _ := r.Nodes.Initialized(txn)
	carried, _ := pathtests.Carried(txn, r.Tests)
	direct := map[string]bool{}
	for p := range r.Paths.All(txn) {
		direct[p.Node] = p.Mode == nodepaths.Direct
	}
	corrupted, _ := pathtests.CorruptedPaths(txn, r.Tests)
	var completer uint32
	for d := range r.Devices.All(txn) {
		if d.Up {
			completer = uint32(d.Index)
		}
	}
	var self *nodeslots.Slot
	for o := range r.Overlays.All(txn) {
		if o.Source.IsValid() && r.Agent.Tunnel() {
			self = &nodeslots.Slot{Node: "a", Source: o.Source, Addrs: []netip.Addr{o.Source}}
			rows = append(rows, self)
		}
	}
	if r.Agent.Tunnel() && self == nil {
		return nil, complete
	}
	for id := range r.IDs.All(txn) {
		n, _, found := r.Nodes.Get(txn, nodes.ByName(id.Name))
		if !found || !id.Released.IsZero() || n.Source == nodes.Local {
			continue
		}
		row := &nodeslots.Slot{ID: id.ID, Node: id.Name, MTU: uint16(carried[id.Name])}
		if rows = append(rows, row); !r.Agent.Tunnel() {
			row.Direct = true
			continue
		}
		for _, ipv6 := range []bool{false, true} {
			if addr := n.Address(ipv6); addr.IsValid() && addr != self.Source {
				if row.Addrs = append(row.Addrs, addr); ipv6 == self.Source.Is6() {
					row.Underlay, row.Source, row.Direct = addr, self.Source, direct[id.Name]
					if corrupted[id.Name] {
						row.Checksums = completer
					}
				}
			}
		}
		if !complete && !row.Underlay.IsValid() {
			rows = rows[:len(rows)-1]
		}
	}
	return rows, true
}

// TestController_MatchesFullRead randomly changes the rows of a few nodes. Unchanged rows keep their status.
func TestController_MatchesFullRead(t *testing.T) {
	t.Parallel()
	for _, tunnel := range []bool{false, true} {
		t.Run(fmt.Sprint("tunnel=", tunnel), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			written, kept := 0, 0
			for range 20 {
				r := newRig(t, tunnel)
				var want []*nodeslots.Slot
				for i := range 300 {
					before := statedb.Collect(r.Table.All(r.DB.ReadTxn()))
					r.write(t, func(txn statedb.WriteTxn) {
						for range 1 + random.IntN(2) {
							r.change(t, txn, random)
						}
						if i == 100 {
							r.complete(txn)
						}
					})
					txn := r.DB.ReadTxn()
					if rows, known := r.whole(txn); known {
						want = rows
					}
					have := statedb.Collect(r.Table.All(txn))
					require.True(t, slices.EqualFunc(want, have, (*nodeslots.Slot).Equal), "round %d: want %v, have %v", i, want, have)
					for _, row := range have {
						switch {
						case slices.Contains(before, row):
							kept++
						case row.Status.Kind == reconciler.StatusKindPending && !slices.ContainsFunc(before, row.Equal):
							written++
						default:
							t.Fatalf("%v was written again", row)
						}
					}
					done, _ := r.Table.Initialized(txn)
					require.Equal(t, i >= 100, done)
				}
			}
			require.NotZero(t, written)
			require.NotZero(t, kept)
		})
	}
}

// BenchmarkNodeMoves measures an address change of one node in a cluster of 5,000, with a tunnel.
func BenchmarkNodeMoves(b *testing.B) {
	r := newRig(b, true)
	move := func(txn statedb.WriteTxn, i, turn int) {
		celltest.PutRow(b, txn, r.in.Nodes, &nodes.Node{Name: fmt.Sprint("node-", i), Source: nodes.Kubernetes,
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)})}}}, false)
	}
	r.write(b, func(txn statedb.WriteTxn) {
		for i := range 5000 {
			move(txn, i, 0)
			celltest.PutRow(b, txn, r.in.IDs, &nodeids.NodeID{ID: uint16(i + 1), Name: fmt.Sprint("node-", i)}, false)
		}
		celltest.PutRow(b, txn, r.in.Overlays, &overlays.Overlay{Device: "tunnel", Source: netip.MustParseAddr("192.0.2.1")}, false)
		r.complete(txn)
	})
	require.Equal(b, 5001, r.Table.NumObjects(r.DB.ReadTxn()))
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		turn++
		r.write(b, func(txn statedb.WriteTxn) { move(txn, 100, turn) })
	}
}
