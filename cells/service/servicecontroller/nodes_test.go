package servicecontroller

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// numbered returns a node whose address and pod range derive from its number. The address also depends on whether turn is odd.
func numbered(i, turn int) *k8s.Node {
	return &k8s.Node{Name: fmt.Sprint("node-", i), PodCIDRs: []string{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24).String()},
		Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)}).String()}}}
}

// balanced returns a LoadBalancer service whose addresses derive from its number.
func balanced(i int) *k8s.Service {
	return &k8s.Service{Namespace: "d", Name: fmt.Sprint("lb-", i), Type: "LoadBalancer", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})},
		IngressIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})}, Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}}
}

// fill makes a cluster of nodes and LoadBalancer services.
func (b *bench) fill(nodes, services int) {
	b.state(sources.Synced)
	rows := []any{nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.1"), NodePort: true, Device: "eth0"}}
	for i := range nodes {
		rows = append(rows, numbered(i, 0))
	}
	for i := range services {
		rows = append(rows, balanced(i))
	}
	b.insert(rows...)
	b.step()
}

// TestNode_Change_ComputesAffectedServices: a change of a node computes only the services with an external address that the node has gained or lost, as its
// own address or in its pod range. Labels matter only on this node, where the node-selectors and the zone of all services depend on them.
func TestNode_Change_ComputesAffectedServices(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.fill(20, 200)
	pieces := 0
	b.c.alive = func() { pieces++ }
	expect := func(what string, n *k8s.Node, want int) {
		t.Helper()
		pieces = 0
		b.insert(n)
		b.step()
		require.Equal(t, want, pieces, what)
	}
	problems := func(service string) (list []string) {
		for row := range b.c.Services.All(b.db.ReadTxn()) {
			if row.Name == service {
				list = row.Problems
			}
		}
		return list
	}
	expect("a node joins", numbered(20, 0), 0)
	expect("another address", numbered(20, 1), 0)
	n := numbered(20, 1)
	n.Labels = map[string]string{"rack": "1", "topology.kubernetes.io/zone": "x"}
	expect("a label of another node changes", n, 0)
	expect("a label of this node changes", &k8s.Node{Name: plain.NodeName, Labels: n.Labels}, 200)
	n = numbered(20, 0)
	n.Addresses[0].Address = "203.0.0.7"
	expect("the address of a service", n, 1)
	require.Equal(t, []string{"LoadBalancer 203.0.0.7: is an address of node node-20"}, problems("d/lb-7"))
	n = numbered(20, 0)
	n.PodCIDRs = []string{"203.0.0.8/29"}
	expect("the range of services, and no longer the address of one", n, 9)
	require.Empty(t, problems("d/lb-7"))
	require.Equal(t, []string{"LoadBalancer 203.0.0.15: lies in the pod CIDR of a node"}, problems("d/lb-15"))
	expect("the range is another one", numbered(20, 0), 8)
	require.Empty(t, problems("d/lb-15"))
}

// With --ipam=cluster-pool nothing is computed until the CiliumNodes with the pod ranges are read.
func TestClusterPool_WaitsForRangesOfNodes(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	waiting := func() string {
		b.c.read(b.db.ReadTxn(), statedb.NewWatchSet())
		return b.c.in.waiting(b.db.ReadTxn(), statedb.NewWatchSet())
	}
	b.c.Rules.agent.IPAM = agentconfig.IPAMClusterPool
	require.NoError(t, b.c.restore())
	b.state(sources.Synced)
	n := numbered(1, 0)
	n.PodCIDRs = nil
	b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.1"), NodePort: true, Device: "eth0"}, n)
	require.Equal(t, "the table cilium-nodes to be read", waiting())

	others := b.c.CiliumNodes.(statedb.RWTable[*cilium.Node])
	txn := b.db.WriteTxn(b.srcs, others)
	put(b, txn, others, &cilium.Node{Name: n.Name, PodCIDRs: []string{"10.0.1.0/24"}})
	put(b, txn, b.srcs, sources.Source{Table: others.Name(), State: sources.Synced})
	txn.Commit()
	require.Equal(t, "the addresses and ranges of the node node-1", waiting())

	row := rowOf(numbered(1, 0))
	row.Source = nodes.CiliumNode
	txn = b.db.WriteTxn(b.rows)
	put(b, txn, b.rows, row)
	txn.Commit()
	require.Empty(t, waiting())
}

// BenchmarkNodeMoves measures a change of a node's address among 5,000 nodes and 10,000 LoadBalancer services.
func BenchmarkNodeMoves(b *testing.B) {
	x := newBench(b, DefaultConfig, &fakeIDs{})
	x.fill(5000, 10_000)
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		turn++
		x.insert(numbered(100, turn))
		x.step()
	}
}
