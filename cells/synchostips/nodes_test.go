package synchostips

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	nodetable "github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// claimSet is what one owner claims.
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

// nodesRig is the loop without its goroutine, over tables that a test fills.
type nodesRig struct {
	*nodes
	claims      claimSet
	objects     statedb.RWTable[*k8s.Node]
	ciliumNodes statedb.RWTable[*cilium.Node]
	rows        statedb.RWTable[*nodetable.Node]
	slices      statedb.RWTable[*k8s.EndpointSlice]
}

func newNodesRig(tb testing.TB, tunnel bool) *nodesRig {
	tb.Helper()
	db := statedb.New()
	k8sNodes, err1 := k8s.NewNodeTable(db)
	ciliumNodes, err2 := cilium.NewNodeTable(db)
	accepted, err3 := nodetable.NewTable(db)
	slices, err4 := k8s.NewEndpointSliceTable(db)
	for _, err := range []error{err1, err2, err3, err4} {
		require.NoError(tb, err)
	}
	agent := settings.Agent{NodeName: "a", EnableIPv4: true, EnableIPv6: true}
	if tunnel {
		agent.TunnelPort = 8472
	}
	claims := claimSet{}
	n := newNodes(nodeParams{DB: db, Agent: agent, Nodes: k8sNodes, CiliumNodes: ciliumNodes, Accepted: accepted, Slices: slices, IPCache: claims})
	require.NoError(tb, n.subscribe())
	tb.Cleanup(n.close)
	return &nodesRig{n, claims, k8sNodes, ciliumNodes, accepted, slices}
}

// wholeClaims computes from all nodes at once what must be claimed, and how many addresses are not believed. It reports false while that is not known.
func wholeClaims(txn statedb.ReadTxn, p nodeParams) (claims claimSet, refused int, known bool) {
	byName, index := map[string]clusternodes.Node{}, clusternodes.NewIndex()
	for row := range p.Nodes.All(txn) {
		byName[row.Name] = clusternodes.ReadOne(txn, p.Nodes, p.CiliumNodes, row.Name)
	}
	for row := range p.CiliumNodes.All(txn) {
		byName[row.Name] = clusternodes.ReadOne(txn, p.Nodes, p.CiliumNodes, row.Name)
	}
	for _, n := range byName {
		index.Replace(clusternodes.Node{}, n)
	}
	all := slices.SortedFunc(maps.Values(byName), func(a, b clusternodes.Node) int {
		return cmp.Or(first(a.Name == p.Agent.NodeName, b.Name == p.Agent.NodeName), strings.Compare(a.Name, b.Name))
	})
	owners := map[netip.Addr]string{}
	if p.Agent.Tunnel() {
		for _, n := range all {
			if _, _, found := p.Accepted.Get(txn, nodetable.ByName(n.Name)); !found {
				return nil, 0, false
			}
		}
		for row := range p.Accepted.All(txn) {
			for _, a := range row.Addresses {
				if row.Source != nodetable.Local {
					owners[a.Addr] = row.Name
				}
			}
		}
	}
	who := map[netip.Addr]uint32{}
	claim := func(node string, addr netip.Addr, number uint32) {
		switch {
		case index.HoldsPods(node, addr):
			refused++
		case who[addr] != identity.Host:
			who[addr] = number
		}
	}
	for _, n := range all {
		number, health := identity.RemoteNode, identity.Health
		if n.Name == p.Agent.NodeName {
			number, health = identity.Host, identity.Host
		}
		for _, addr := range n.Health {
			claim(n.Name, addr, health)
		}
		for _, addr := range slices.Concat(n.Addrs, n.Routers) {
			claim(n.Name, addr, number)
		}
	}
	servers, _ := clusternodes.APIServers(txn, p.Slices)
	for _, addr := range servers {
		if who[addr] == identity.RemoteNode {
			who[addr] = identity.KubeAPIServer
		}
		for _, router := range byName[owners[addr]].Routers {
			if owners[router] == owners[addr] && router.Is4() == addr.Is4() && who[router] == identity.RemoteNode {
				who[router] = identity.KubeAPIServer
			}
		}
	}
	claims = claimSet{}
	for addr, number := range who {
		claims[clusternodes.Whole(addr)] = ipcache.Claim{Prefix: clusternodes.Whole(addr), Identity: number, Node: owners[addr], Source: ipcache.SourceNode}
	}
	return claims, refused, true
}

// TestNodes_AgreeWithAReaderOfAllNodes changes objects and rows of few nodes with few addresses at random.
func TestNodes_AgreeWithAReaderOfAllNodes(t *testing.T) {
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
				txn := r.DB.ReadTxn()
				known := r.round(txn, statedb.NewWatchSet())
				claims, refused, want := wholeClaims(txn, r.nodeParams)
				if require.Equal(t, want, known); !known {
					continue
				}
				require.Equal(t, claims, r.claims)
				require.Equal(t, refused, r.refused)
				require.Len(t, r.claimed, len(claims))
				changed += len(claims)
			}
			require.NotZero(t, changed)
		})
	}
}

// change changes one object or row.
func (r *nodesRig) change(t *testing.T, random *rand.Rand) {
	t.Helper()
	addrs := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "10.0.0.7", "10.0.1.7", "fd00::7"}
	cidrs := []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16", "fd00::/64"}
	some := func(from []string, one int) (list []string) {
		for _, text := range from {
			if random.IntN(one) == 0 {
				list = append(list, text)
			}
		}
		return list
	}
	name, deleted := string(rune('a'+random.IntN(4))), random.IntN(5) == 0
	txn := r.DB.WriteTxn(r.objects, r.ciliumNodes, r.rows, r.slices)
	defer txn.Commit()
	switch random.IntN(4) {
	case 0:
		n := &k8s.Node{Name: name, PodCIDRs: some(cidrs, 4)}
		for _, addr := range some(addrs, 3) {
			n.Addresses = append(n.Addresses, k8s.NodeAddress{Type: []string{"InternalIP", "ExternalIP"}[random.IntN(2)], Address: addr})
		}
		put(t, txn, r.objects, n, deleted)
	case 1:
		n := &cilium.Node{Name: name, PodCIDRs: some(cidrs, 4)}
		for _, addr := range some(addrs, 3) {
			n.Addresses = append(n.Addresses, cilium.NodeAddress{Type: []string{"InternalIP", "CiliumInternalIP"}[random.IntN(2)], IP: addr})
		}
		if health := some(addrs, 3); len(health) > 0 {
			n.HealthIPv4 = health[0]
		}
		put(t, txn, r.ciliumNodes, n, deleted)
	case 2:
		// Most nodes have a row, and each address one node, as in the table.
		for _, name := range []string{"a", "b", "c", "d"} {
			put(t, txn, r.rows, &nodetable.Node{Name: name}, random.IntN(30) == 0)
		}
		for _, addr := range some(addrs, 2) {
			name := string(rune('a' + random.IntN(4)))
			row, _, found := r.rows.Get(txn, nodetable.ByName(name))
			if !found {
				continue
			}
			next := *row
			next.Source = nodetable.Kubernetes
			if name == "a" {
				next.Source = nodetable.Local
			}
			next.Addresses = append(slices.Clip(next.Addresses), nodetable.Address{Type: nodetable.InternalIP, Addr: netip.MustParseAddr(addr)})
			put(t, txn, r.rows, &next, false)
		}
	default:
		s := &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes"}
		for _, addr := range some(addrs, 3) {
			s.Endpoints = append(s.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
		}
		put(t, txn, r.slices, s, deleted)
	}
}

func put[R any](tb testing.TB, txn statedb.WriteTxn, table statedb.RWTable[R], row R, deleted bool) {
	tb.Helper()
	write := table.Insert
	if deleted {
		write = table.Delete
	}
	_, _, err := write(txn, row)
	require.NoError(tb, err)
}

// BenchmarkNodeMoves is what another address of a node costs beside 5,000 others, with a tunnel.
func BenchmarkNodeMoves(b *testing.B) {
	r := newNodesRig(b, true)
	move := func(i, turn int) {
		addr, inner := netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)}), netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
		name, cidr := fmt.Sprint("node-", i), netip.PrefixFrom(inner, 24).Masked()
		txn := r.DB.WriteTxn(r.objects, r.ciliumNodes, r.rows)
		put(b, txn, r.objects, &k8s.Node{Name: name, PodCIDRs: []string{cidr.String()}, Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: addr.String()}}}, false)
		put(b, txn, r.ciliumNodes, &cilium.Node{Name: name, PodCIDRs: []string{cidr.String()}, HealthIPv4: inner.Next().String(),
			Addresses: []cilium.NodeAddress{{Type: "InternalIP", IP: addr.String()}, {Type: "CiliumInternalIP", IP: inner.String()}}}, false)
		put(b, txn, r.rows, &nodetable.Node{Name: name, Source: nodetable.CiliumNode, CIDRs: []netip.Prefix{cidr}, Addresses: []nodetable.Address{
			{Type: nodetable.InternalIP, Addr: addr}, {Type: nodetable.CiliumInternalIP, Addr: inner}, {Type: nodetable.HealthIP, Addr: inner.Next()}}}, false)
		txn.Commit()
	}
	for i := range 5000 {
		move(i, 0)
	}
	require.True(b, r.round(r.DB.ReadTxn(), statedb.NewWatchSet()))
	require.Len(b, slices.Collect(maps.Keys(r.claims)), 15_000)
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		turn++
		move(100, turn)
		r.round(r.DB.ReadTxn(), statedb.NewWatchSet())
	}
}
