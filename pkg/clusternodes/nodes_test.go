package clusternodes

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func read(t *testing.T, nodes []*k8s.Node, ciliumNodes []*cilium.Node) All {
	t.Helper()
	db := statedb.New()
	a, err := k8s.NewNodeTable(db)
	require.NoError(t, err)
	b, err := cilium.NewNodeTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(a, b)
	for _, row := range nodes {
		_, _, err := a.Insert(txn, row)
		require.NoError(t, err)
	}
	for _, row := range ciliumNodes {
		_, _, err := b.Insert(txn, row)
		require.NoError(t, err)
	}
	txn.Commit()
	return Read(db.ReadTxn(), a, b)
}

func TestMayHold_WhatANodeSaysOfItselfCountsLess(t *testing.T) {
	t.Parallel()
	x := read(t, []*k8s.Node{
		{Name: "a", PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd01::/64"}},
		{Name: "b"}, {Name: "c"},
	}, []*cilium.Node{
		{Name: "b", PodCIDRs: []string{"10.1.0.0/24", "10.2.0.0/24", "0.0.0.0/0", "::/0", "10.0.0.0/7", "nonsense", "::ffff:10.0.0.0/104"}},
		{Name: "c", PodCIDRs: []string{"10.2.0.0/16"}},
		{Name: "gone", PodCIDRs: []string{"10.9.0.0/24"}},
	}).Index()
	for _, c := range []struct {
		node, addr string
		want       bool
	}{
		{"a", "10.1.0.7", true}, {"a", "fd01::7", true}, {"a", "10.2.0.7", false},
		{"b", "10.1.0.7", false}, // another's by its Node
		{"b", "10.2.0.7", true}, {"c", "10.2.0.7", true},
		{"b", "8.8.8.8", false}, {"b", "11.0.0.1", false}, {"b", "2001:db8::1", false}, // nobody has such ranges
		{"gone", "10.9.0.1", true}, {"", "10.1.0.7", false},
	} {
		require.Equal(t, c.want, x.MayHold(c.node, netip.MustParseAddr(c.addr)), "%+v", c)
	}
	require.True(t, x.HoldsPods("b", netip.MustParseAddr("10.1.0.7")))
	require.False(t, x.HoldsPods("a", netip.MustParseAddr("fd01::7")))
}

func TestRead_AddressesOfNodes(t *testing.T) {
	t.Parallel()
	all := read(t, []*k8s.Node{{Name: "a", Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"},
		{Type: "ExternalIP", Address: "203.0.113.1"}, {Type: "Hostname", Address: "192.0.2.9"}, {Type: "InternalIP", Address: "127.0.0.1"}}}},
		[]*cilium.Node{{Name: "a", Addresses: []cilium.NodeAddress{{Type: "InternalIP", IP: "192.0.2.1"}, {Type: "CiliumInternalIP", IP: "10.1.0.1"},
			{Type: "InternalIP", IP: "x"}, {Type: "InternalIP", IP: "fe80::1"}}, HealthIPv4: "10.1.0.2", HealthIPv6: "::ffff:10.1.0.2"},
			{Name: "b", Addresses: []cilium.NodeAddress{{Type: "InternalIP", IP: "192.0.2.1"}}}})
	addr := netip.MustParseAddr
	require.Equal(t, All{
		{Name: "a", Addrs: []netip.Addr{addr("192.0.2.1"), addr("203.0.113.1")}, Routers: []netip.Addr{addr("10.1.0.1")},
			Health: []netip.Addr{addr("10.1.0.2")}},
		{Name: "b", Addrs: []netip.Addr{addr("192.0.2.1")}},
	}, all)
	require.Equal(t, []string{"a", "b"}, all.Index().NodesOf(addr("192.0.2.1")))
	require.Empty(t, all.Index().NodesOf(addr("192.0.2.9")))
	require.True(t, all.Equal(all))
	require.False(t, all.Equal(all[:1]))
}

// An index whose nodes are replaced one by one answers as one that is made of what there is.
func TestReplace_AgreesWithANewIndex(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd01::7")}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd01::/64")}
	some := func(n int) bool { return random.IntN(n) == 0 }
	names, now, x := []string{"a", "b", "c"}, map[string]Node{}, NewIndex()
	for range 2000 {
		name := names[random.IntN(len(names))]
		n := Node{}
		if !some(4) {
			n.Name = name
			for _, addr := range addrs {
				for _, into := range []*[]netip.Addr{&n.Addrs, &n.Routers, &n.Health} {
					if some(4) {
						*into = append(*into, addr)
					}
				}
			}
			for _, r := range ranges {
				for _, spec := range []bool{true, false} {
					if some(3) {
						n.CIDRs = append(n.CIDRs, CIDR{r, spec})
					}
				}
			}
		}
		x.Replace(now[name], n)
		if now[name] = n; n.Name == "" {
			delete(now, name)
		}
		want := NewIndex()
		for _, n := range now {
			want.Replace(Node{}, n)
		}
		for _, addr := range addrs {
			require.Equal(t, want.NodesOf(addr), x.NodesOf(addr))
			for _, name := range names {
				require.Equal(t, want.MayHold(name, addr), x.MayHold(name, addr))
				require.Equal(t, want.HoldsPods(name, addr), x.HoldsPods(name, addr))
			}
		}
	}
}
