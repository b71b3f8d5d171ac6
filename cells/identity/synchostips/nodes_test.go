package synchostips

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// claimSet is the claims of one owner.
type claimSet map[netip.Prefix]ipcache.Claim

func (s claimSet) Replace(string, []ipcache.Claim, bool) {}

func (s claimSet) Update(_ string, put []ipcache.Claim, remove []netip.Prefix, _ bool) {
	for _, p := range remove {
		delete(s, p)
	}
	for _, c := range put {
		s[c.Prefix] = c
	}
}

// nodesRig is the controller without its goroutine, over tables that a test fills.
type nodesRig struct {
	*nodeClaims
	claims claimSet
	rows   statedb.RWTable[*nodes.Node]
	slices statedb.RWTable[*k8s.EndpointSlice]
}

func newNodesRig(tb testing.TB, tunnel bool) *nodesRig {
	tb.Helper()
	db := statedb.New()
	rows, err1 := nodes.NewTable(db)
	slices, err2 := k8s.NewEndpointSliceTable(db)
	for _, err := range []error{err1, err2} {
		require.NoError(tb, err)
	}
	agent := agentconfig.Agent{NodeName: "a", EnableIPv4: true, EnableIPv6: true}
	if tunnel {
		agent.TunnelPort = 8472
	}
	claims := claimSet{}
	n := newNodes(nodeParams{DB: db, Agent: agent, Nodes: rows, Slices: slices, IPCache: claims})
	require.NoError(tb, n.subscribe())
	tb.Cleanup(n.all.Close)
	return &nodesRig{n, claims, rows, slices}
}

// wholeClaims computes the expected claims from all nodes at once.
func wholeClaims(txn statedb.ReadTxn, p nodeParams) claimSet {
	claims, owners, withServer := claimSet{}, map[netip.Addr]string{}, map[string]map[bool]bool{} // by name and family
	servers, _ := clusternodes.APIServers(txn, p.Slices)
	for row := range p.Nodes.All(txn) {
		for _, a := range row.Addresses {
			owners[a.Addr] = row.Name
		}
	}
	for _, addr := range servers {
		if owner := owners[addr]; owner != "" {
			if withServer[owner] == nil {
				withServer[owner] = map[bool]bool{}
			}
			withServer[owner][addr.Is4()] = true
		}
	}
	for row := range p.Nodes.All(txn) {
		for _, a := range row.Addresses {
			claim := ipcache.Claim{Prefix: clusternodes.Whole(a.Addr), Identity: identity.RemoteNode, Source: ipcache.SourceNode}
			if p.Agent.Tunnel() && row.Source != nodes.Local {
				claim.Node = row.Name
			}
			before, more := claims[claim.Prefix]
			switch {
			case row.Source == nodes.Local:
				claim.Identity = identity.Host
			case a.Type == nodes.HealthIP && more:
				claim = before
			case a.Type == nodes.HealthIP:
				claim.Identity = identity.Health
			case slices.Contains(servers, a.Addr), p.Agent.Tunnel() && a.Type == nodes.CiliumInternalIP && withServer[row.Name][a.Addr.Is4()],
				before.Identity == identity.KubeAPIServer:
				claim.Identity = identity.KubeAPIServer
			}
			claims[claim.Prefix] = claim
		}
	}
	return claims
}

func (r *nodesRig) runRound() {
	r.round(&loop.Round{Txn: r.DB.ReadTxn(), Changed: statedb.NewWatchSet()})
}

// TestNodes_MatchFullRead randomly changes the rows of a few nodes with a few addresses.
func TestNodes_MatchFullRead(t *testing.T) {
	t.Parallel()
	for _, tunnel := range []bool{false, true} {
		t.Run(fmt.Sprint("tunnel=", tunnel), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			r, changed := newNodesRig(t, tunnel), 0
			for range 4000 {
				r.change(t, random)
				if random.IntN(4) == 0 {
					continue // several changes in one round
				}
				r.runRound()
				claims := wholeClaims(r.DB.ReadTxn(), r.nodeParams)
				require.Equal(t, claims, r.claims)
				require.Len(t, r.claimed, len(claims))
				changed += len(claims)
			}
			require.NotZero(t, changed)
		})
	}
}

// A removed node keeps its row until the nodes are complete, and another node may have its address meanwhile.
func TestNodes_OneAddressOfTwoRows(t *testing.T) {
	t.Parallel()
	r, addr := newNodesRig(t, true), netip.MustParseAddr("192.0.2.1")
	for _, name := range []string{"b", "c", "a"} {
		txn := r.DB.WriteTxn(r.rows)
		row := &nodes.Node{Name: name, Source: nodes.CiliumNode, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addr}}}
		if name == "a" {
			row.Source = nodes.Local
		}
		celltest.PutRow(t, txn, r.rows, row, false)
		txn.Commit()
		r.runRound()
		want := ipcache.Claim{Prefix: clusternodes.Whole(addr), Identity: identity.RemoteNode, Node: "b", Source: ipcache.SourceNode}
		if name == "a" {
			want.Identity, want.Node = identity.Host, ""
		}
		require.Equal(t, claimSet{want.Prefix: want}, r.claims)
	}
}

// change moves addresses between rows, adds or deletes a row, or moves API servers. Each address belongs to one node, as in the table.
func (r *nodesRig) change(t *testing.T, random *rand.Rand) {
	t.Helper()
	addrs := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "10.0.0.7", "10.0.1.7", "fd00::7", "fd00:1::7"}
	types := []string{nodes.InternalIP, nodes.ExternalIP, nodes.CiliumInternalIP, nodes.HealthIP}
	txn := r.DB.WriteTxn(r.rows, r.slices)
	defer txn.Commit()
	if random.IntN(3) == 0 {
		s := &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes"}
		for _, text := range addrs {
			if random.IntN(3) == 0 {
				s.Endpoints = append(s.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{netip.MustParseAddr(text)}})
			}
		}
		celltest.PutRow(t, txn, r.slices, s, random.IntN(5) == 0)
		return
	}
	rows := map[string]*nodes.Node{}
	for row := range r.rows.All(txn) {
		copied := *row
		rows[row.Name] = &copied
	}
	name := string(rune('a' + random.IntN(4)))
	if rows[name] == nil {
		rows[name] = &nodes.Node{Name: name, Source: nodes.CiliumNode}
	}
	if name == "a" {
		rows[name].Source = nodes.Local
	}
	for _, text := range addrs {
		if random.IntN(4) > 0 {
			continue
		}
		addr := netip.MustParseAddr(text)
		for _, row := range rows {
			row.Addresses = slices.DeleteFunc(slices.Clone(row.Addresses), func(a nodes.Address) bool { return a.Addr == addr })
		}
		for range random.IntN(3) {
			rows[name].Addresses = append(rows[name].Addresses, nodes.Address{Type: types[random.IntN(len(types))], Addr: addr})
		}
	}
	for _, row := range rows {
		celltest.PutRow(t, txn, r.rows, row, row.Name == name && random.IntN(6) == 0)
	}
}

// BenchmarkNodeMoves measures an address change of one node in a cluster of 5,000, with a tunnel.
func BenchmarkNodeMoves(b *testing.B) {
	r := newNodesRig(b, true)
	move := func(i, turn int) {
		addr, inner := netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)}), netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
		txn := r.DB.WriteTxn(r.rows)
		celltest.PutRow(b, txn, r.rows, &nodes.Node{Name: fmt.Sprint("node-", i), Source: nodes.CiliumNode, CIDRs: []netip.Prefix{netip.PrefixFrom(inner, 24).Masked()},
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addr}, {Type: nodes.CiliumInternalIP, Addr: inner}, {Type: nodes.HealthIP, Addr: inner.Next()}}}, false)
		txn.Commit()
	}
	for i := range 5000 {
		move(i, 0)
	}
	r.runRound()
	require.Len(b, slices.Collect(maps.Keys(r.claims)), 15_000)
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		turn++
		move(100, turn)
		r.runRound()
	}
}
