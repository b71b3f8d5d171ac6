package nodelist

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rig is the controller without its goroutine, over tables that a test fills.
type rig struct {
	*controller
	nodes       statedb.RWTable[*k8s.Node]
	ciliumNodes statedb.RWTable[*cilium.Node]
	local       statedb.RWTable[*localnode.LocalNode]
	sources     statedb.RWTable[sources.Source]
	complete    func(statedb.WriteTxn) // completes the table k8s-nodes
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	db := statedb.New()
	table, err1 := nodes.NewTable(db)
	k8sNodes, err2 := k8s.NewNodeTable(db)
	ciliumNodes, err3 := cilium.NewNodeTable(db)
	local, err4 := localnode.NewTable(db)
	srcs, err5 := sources.NewTable(db)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(k8sNodes)
	complete := k8sNodes.RegisterInitializer(txn, "test")
	txn.Commit()
	c := newController(params{DB: db, Agent: agentconfig.Agent{NodeName: "self"}, Had: newTrustedRanges(agentconfig.Agent{StateDir: tb.TempDir()}, slog.New(slog.DiscardHandler)), Table: table, LocalNode: local, Nodes: k8sNodes, CiliumNodes: ciliumNodes, Sources: srcs})
	require.NoError(tb, c.subscribe())
	tb.Cleanup(c.close)
	return &rig{c, k8sNodes, ciliumNodes, local, srcs, complete}
}

// write changes objects in one commit and runs a round.
func (r *rig) write(tb testing.TB, change func(statedb.WriteTxn)) {
	tb.Helper()
	txn := r.DB.WriteTxn(r.nodes, r.ciliumNodes, r.local, r.sources)
	change(txn)
	txn.Commit()
	require.NoError(tb, r.round(r.DB.ReadTxn(), statedb.NewWatchSet()))
}

// change changes one random object. The small sets of addresses and ranges cause overlapping claims.
func (r *rig) change(t *testing.T, txn statedb.WriteTxn, random *rand.Rand) {
	t.Helper()
	addrs := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "198.51.100.1", "10.0.0.7", "10.1.0.7", "10.2.0.7", "fd00::7", "127.0.0.1", "nonsense"}
	cidrs := []string{"10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/24", "10.2.0.0/25", "10.1.0.0/16", "10.0.0.0/8", "fd00::/64", "fd00:0:0:1::/64", "0.0.0.0/0"}
	some := func(from []string) (list []string) {
		for range random.IntN(3) {
			list = append(list, from[random.IntN(len(from))])
		}
		return list
	}
	name, deleted := []string{"self", "a", "b", "c", "d", "e"}[random.IntN(6)], random.IntN(5) == 0
	switch random.IntN(8) {
	case 0:
		own := &localnode.LocalNode{Name: "self"}
		if random.IntN(2) == 0 {
			own.IPv4 = localnode.Family{AllocRange: netip.MustParsePrefix(cidrs[random.IntN(3)]), NodeIP: netip.MustParseAddr(addrs[random.IntN(4)])}
			own.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
		}
		celltest.PutRow(t, txn, r.local, own, deleted)
	case 1, 2, 3, 4:
		n := &k8s.Node{Name: name, UID: "uid-" + name, Created: random.Int64N(3), PodCIDRs: some(cidrs)}
		for _, addr := range some(addrs) {
			n.Addresses = append(n.Addresses, k8s.NodeAddress{Type: []string{nodes.InternalIP, nodes.ExternalIP}[random.IntN(2)], Address: addr})
		}
		celltest.PutRow(t, txn, r.nodes, n, deleted)
	default:
		n := &cilium.Node{Name: name, UID: "cn-" + name, Created: random.Int64N(3), PodCIDRs: some(cidrs)}
		for _, addr := range some(addrs) {
			n.Addresses = append(n.Addresses, cilium.NodeAddress{Type: []string{nodes.InternalIP, nodes.CiliumInternalIP}[random.IntN(2)], IP: addr})
		}
		if health := some(addrs); len(health) > 0 {
			n.HealthIPv4 = health[0]
		}
		n.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: strings.Join(some(cidrs), ",")}
		celltest.PutRow(t, txn, r.ciliumNodes, n, deleted)
	}
}

// TestController_MatchesFullResolution changes objects at random. Rows without an object or a retained range stay until the objects are complete.
func TestController_MatchesFullResolution(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	for range 20 {
		r, rejected, alone := newRig(t), 0, 0
		rows := map[string]*nodes.Node{}
		const rounds = 300
		for i := range rounds {
			complete := i >= rounds/3
			r.write(t, func(txn statedb.WriteTxn) {
				for range 1 + random.IntN(2) {
					r.change(t, txn, random)
				}
				if complete {
					r.complete(txn)
				}
			})
			txn := r.DB.ReadTxn()
			if complete {
				clear(rows)
			}
			count := 0
			for _, row := range resolve(r.self, rules{had: &trustedRanges{}}, statedb.Collect(r.nodes.All(txn)), statedb.Collect(r.ciliumNodes.All(txn)), slices.Collect(maps.Values(r.Had.retained))...) {
				rows[row.Name] = row
				if count += len(row.Refused); len(row.Refused) > 0 {
					require.Equal(t, row, r.rejected[row.Name])
				} else {
					require.NotContains(t, r.rejected, row.Name)
					alone++
				}
			}
			have := map[string]*nodes.Node{}
			for row := range r.Table.All(txn) {
				have[row.Name] = row
			}
			require.Equal(t, rows, have, "round %d", i)
			done, _ := r.Table.Initialized(txn)
			require.Equal(t, complete, done)
			rejected += count
		}
		require.NotZero(t, rejected)
		require.NotZero(t, alone)
	}
}

// The CiliumNode of a malicious agent, which claims the address of another node, is read before the Node with the address.
func TestController_TrustsCiliumNodesOnlyAfterNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ofNodes := sources.Source{Table: r.nodes.Name(), State: sources.Waiting}
	r.write(t, func(txn statedb.WriteTxn) {
		celltest.PutRow(t, txn, r.sources, ofNodes, false)
		celltest.PutRow(t, txn, r.ciliumNodes, ciliumNode("evil", 1, "192.0.2.2", "10.0.1.0/24"), false)
	})
	_, _, found := r.Table.Get(r.DB.ReadTxn(), nodes.ByName("evil"))
	require.False(t, found)
	ofNodes.State = sources.Snapshot
	r.write(t, func(txn statedb.WriteTxn) {
		celltest.PutRow(t, txn, r.nodes, node("a", 9, "192.0.2.2"), false)
		celltest.PutRow(t, txn, r.sources, ofNodes, false)
	})
	row, _, found := r.Table.Get(r.DB.ReadTxn(), nodes.ByName("evil"))
	require.True(t, found)
	require.Equal(t, "custom-resource | 10.0.1.0/24 | 192.0.2.2: is an address of node a", formatRow(row))
}

// An agent that has seen the range of a Node accepts it as a former range in its next run. An agent that has not seen it does not trust the other node's
// annotation.
func TestController_PreviousRangesSurviveRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	agent := func(had *trustedRanges, ranges ...string) *nodes.Node {
		r := newRig(t)
		r.Agent.IPAM, r.Had = agentconfig.IPAMKubernetes, had
		for _, cidr := range ranges {
			r.write(t, func(txn statedb.WriteTxn) {
				c := ciliumNode("a", 1, "", cidr)
				c.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.1.0/24," + cidr}
				celltest.PutRow(t, txn, r.nodes, node("a", 1, "192.0.2.2", cidr), false)
				celltest.PutRow(t, txn, r.ciliumNodes, c, false)
			})
		}
		require.NoError(t, saveError(had))
		row, _, found := r.Table.Get(r.DB.ReadTxn(), nodes.ByName("a"))
		require.True(t, found)
		return row
	}
	both := []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24"), netip.MustParsePrefix("10.0.1.0/24")}
	first := agent(loaded(t, dir), "10.0.1.0/24", "10.0.2.0/24")
	require.Equal(t, both, first.CIDRs)
	require.Equal(t, 1, first.Former)
	require.Equal(t, both, agent(loaded(t, dir), "10.0.2.0/24").CIDRs)
	require.Equal(t, both[:1], agent(loaded(t, t.TempDir()), "10.0.2.0/24").CIDRs)
}

// After --ipam=cluster-pool the former ranges from the pool are trusted, and nodes that were removed while no agent ran are forgotten.
func TestController_ModeChange_KeepsPoolRanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	agent := func(ipam string, nodes ...string) *rig {
		r := newRig(t)
		r.Agent.IPAM, r.Had = ipam, loaded(t, dir)
		r.write(t, func(txn statedb.WriteTxn) {
			for _, name := range nodes {
				celltest.PutRow(t, txn, r.nodes, node(name, 1, "", "10.7.1.0/24"), false)
				c := ciliumNode(name, 1, "", "10.0.1.0/24")
				c.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.1.0/24"}
				celltest.PutRow(t, txn, r.ciliumNodes, c, false)
			}
			r.complete(txn)
		})
		require.NoError(t, saveError(r.Had))
		return r
	}
	agent(agentconfig.IPAMClusterPool, "a")
	r := agent(agentconfig.IPAMKubernetes, "a")
	row, _, _ := r.Table.Get(r.DB.ReadTxn(), nodes.ByName("a"))
	require.Equal(t, prefixes("10.7.1.0/24", "10.0.1.0/24"), row.CIDRs)
	require.Empty(t, row.Refused)
	agent(agentconfig.IPAMKubernetes)
	require.False(t, loaded(t, dir).has("a", row.CIDRs[0]))
}

// cluster returns the Node and the CiliumNode of one of many nodes.
func cluster(i, turn int) (*k8s.Node, *cilium.Node) {
	name, cidr := fmt.Sprintf("node-%d", i), fmt.Sprintf("10.%d.%d.0/24", 1+i/256, i%256)
	addr := fmt.Sprintf("172.%d.%d.%d", 16+turn%2, i/250, 1+i%250)
	c := ciliumNode(name, int64(i), addr, cidr)
	c.Addresses = append(c.Addresses, cilium.NodeAddress{Type: nodes.CiliumInternalIP, IP: fmt.Sprintf("10.%d.%d.1", 1+i/256, i%256)})
	c.HealthIPv4 = fmt.Sprintf("10.%d.%d.2", 1+i/256, i%256)
	return node(name, int64(i), addr, cidr), c
}

// BenchmarkNodeMoves measures an address change of one node in a cluster of 5,000.
func BenchmarkNodeMoves(b *testing.B) {
	r := newRig(b)
	move := func(txn statedb.WriteTxn, i, turn int) {
		n, c := cluster(i, turn)
		celltest.PutRow(b, txn, r.nodes, n, false)
		celltest.PutRow(b, txn, r.ciliumNodes, c, false)
	}
	r.write(b, func(txn statedb.WriteTxn) {
		for i := range 5000 {
			move(txn, i, 0)
		}
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
