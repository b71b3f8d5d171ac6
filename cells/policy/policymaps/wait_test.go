package policymaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// TestFutile_FactsOfADD: the datapath applies the row of a new endpoint in two writes, and a round can act only on the second.
func TestFutile_FactsOfADD(t *testing.T) {
	w := newBench(t, 4, 1)
	require.True(t, w.futile(0), "everything is taken over and nothing is due")
	require.False(t, w.futile(time.Second), "something is due that facts may have to do with")

	w.add(t, 4)
	txn := w.DB.ReadTxn()
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	again := w.pass(txn, statedb.NewWatchSet())
	require.Equal(t, []uint16{5}, w.last.untaken)
	require.Zero(t, again, "only the facts end the wait: see TestWakeUp_FactsOfADD")

	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(5))
	require.True(t, found)
	f := &bpfendpoints.Facts{ID: 5, IfIndex: 5, Identity: row.Identity, Ingress: row.Ingress, Egress: row.Egress, PolicyRevision: row.Revision,
		Status: reconciler.StatusPending()}
	put(t, w.DB, w.facts, f)
	require.True(t, w.futile(again), "they are not written yet")
	require.Equal(t, []uint16{5}, w.last.untaken)

	done := *f
	put(t, w.DB, w.facts, done.WithStatus(reconciler.StatusDone()))
	require.False(t, w.futile(again), "the pass after that lets others in and cleans up")
}

// A deleted endpoint does not delay the next round.
func TestFutile_DeletedEndpoint(t *testing.T) {
	w := newBench(t, 4, 1)
	w.add(t, 4)
	txn := w.DB.ReadTxn()
	w.in.read(txn, statedb.NewWatchSet(), time.Now())
	again := w.pass(txn, statedb.NewWatchSet())
	put(t, w.DB, w.facts, &bpfendpoints.Facts{ID: 5, IfIndex: 5, Status: reconciler.StatusPending()})
	require.True(t, w.futile(again))

	write := w.DB.WriteTxn(w.Published)
	_, _, err := w.Published.Delete(write, &endpointpolicies.EndpointPolicy{EndpointID: 5})
	require.NoError(t, err)
	write.Commit()
	require.False(t, w.futile(again))
}

// TestPassOver_PodsOfOtherNodes: changes of pods on other nodes, of their CiliumEndpoints and of their addresses in ipcache, begin no round until a rule names
// ports of peers.
func TestPassOver_PodsOfOtherNodes(t *testing.T) {
	w := newBench(t, 4, 1)
	changed := statedb.NewWatchSet()
	w.in.read(w.DB.ReadTxn(), changed, time.Now())
	passedOver := func() bool {
		t.Helper()
		closed, err := changed.Wait(t.Context(), 0)
		require.NoError(t, err)
		return w.in.passOver(closed[0], changed)
	}
	// Two rows of each pod: it is added and then changed. Its identities are those of endpoints of this node, so policies select it as a peer.
	pod := func(i int) *cilium.Endpoint {
		return cilium.NewEndpoint(cilium.EndpointFields{Namespace: "far", Name: fmt.Sprint("pod-", i/2), Identity: uint32(256 + i%4), Node: netip.MustParseAddr("192.0.2.1"),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})}, Ports: []k8s.ContainerPort{webPort}})
	}
	address := func(i int) *ipcache.Entry {
		return ipcache.NewEntry(ipcache.Claim{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}), 32), Identity: 256}, "")
	}
	for i := range 4 {
		put(t, w.DB, rw(w.Remote), pod(i))
		require.True(t, passedOver(), "a CiliumEndpoint is added or changed")
		put(t, w.DB, rw(w.IPCache), address(i))
		require.True(t, passedOver(), "its address")
	}
	remove(t, w.DB, rw(w.Remote), pod(3))
	require.True(t, passedOver(), "a CiliumEndpoint is deleted")
	put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 1, ContainerID: "0", IfName: "eth0", HostIfIndex: 9})
	require.False(t, passedOver(), "an endpoint of this node")

	for name, change := range map[string]func(){
		"an address":       func() { put(t, w.DB, rw(w.IPCache), address(9)) },
		"a CiliumEndpoint": func() { put(t, w.DB, rw(w.Remote), pod(9)) },
	} {
		changed = statedb.NewWatchSet()
		w.in.peers.loaded = false
		w.in.read(w.DB.ReadTxn(), changed, time.Now())
		w.in.peers.loaded = true
		change()
		require.False(t, passedOver(), "%s, while a rule names ports of peers", name)
	}
}

// TestPeers_SlotsOutliveTheRule: the identities that endpoints had when this run began are still known when another rule names ports of peers.
func TestPeers_SlotsOutliveTheRule(t *testing.T) {
	w := newBench(t, 4, 1)
	read := func() { w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now()) }
	w.previous.slots = map[uint16]slot{7: {ifindex: 3, identity: 999}}
	put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 7, ContainerID: "7", IfName: "eth0", HostIfIndex: 3, Restored: true})
	known := func() bool {
		return slices.ContainsFunc(w.in.resolver.PodAs("7:eth0"), func(p *policycompiler.Pod) bool { return p.Identity == 999 })
	}
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	named := &k8s.NetworkPolicy{Namespace: "ns-0", Name: "to-web", IsEgress: true, Egress: []k8s.PolicyRule{{
		Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}}}
	put(t, w.DB, rules, named)
	read()
	require.True(t, known())
	txn := w.DB.WriteTxn(rules)
	_, _, err := rules.Delete(txn, named)
	require.NoError(t, err)
	txn.Commit()
	read()
	require.False(t, known())
	put(t, w.DB, rules, named)
	read()
	require.True(t, known())
}

// webPort is a named port of a container.
var webPort = k8s.ContainerPort{Name: "web", Protocol: "TCP", Number: 80}

// TestPeers_UnacceptedAddresses_FollowTheirOwners: denies apply to an address that ipcache does not accept as that of a pod on another node, while its node may
// have the address and no other endpoint or pod has it. A change of the endpoint, of the other pod or of the node counts, although the pod does not change.
func TestPeers_UnacceptedAddresses_FollowTheirOwners(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 0)
	w.in.Agent.NodeName = "bee"
	addr, other := netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2")
	host := netip.MustParseAddr("192.168.0.1")
	pod := func(name string, number uint32, addr netip.Addr) *cilium.Endpoint {
		return cilium.NewEndpoint(cilium.EndpointFields{Namespace: "far", Name: name, Identity: number, Node: host, Addrs: []netip.Addr{addr}, Ports: []k8s.ContainerPort{webPort}})
	}
	node := &nodes.Node{Name: "far", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: host}}}
	local := &endpoints.Endpoint{ID: 9, ContainerID: "nine", IfName: "eth0", HostIfIndex: 9, IPv4: addr}
	put(t, w.DB, rw(w.KubernetesPolicies), &k8s.NetworkPolicy{Namespace: "ns-0", Name: "to-web", IsEgress: true, Egress: []k8s.PolicyRule{{
		Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}}})
	put(t, w.DB, rw(w.Nodes), node)
	put(t, w.DB, w.endpoints, local)
	put(t, w.DB, rw(w.Remote), pod("one", 9001, addr))
	denied := func() bool {
		w.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
		return slices.ContainsFunc(w.in.resolver.PodAs("far/one"), func(p *policycompiler.Pod) bool { return p.Identity == 9001 && p.DenyOnly })
	}
	require.False(t, denied(), "an endpoint has the address")
	remove(t, w.DB, w.endpoints, local)
	require.True(t, denied())
	put(t, w.DB, w.endpoints, local)
	require.False(t, denied())
	remove(t, w.DB, w.endpoints, local)
	require.True(t, denied())

	put(t, w.DB, rw(w.Remote), pod("two", 9002, addr))
	put(t, w.DB, rw(w.IPCache), ipcache.NewEntry(ipcache.Claim{Prefix: netip.PrefixFrom(addr, 32), Identity: 9002, Node: "far"}, ipcache.OwnerCiliumEndpoints))
	require.False(t, denied(), "ipcache accepts the address as that of another pod")
	put(t, w.DB, rw(w.Remote), pod("two", 9002, other))
	require.True(t, denied())

	narrow := *node
	narrow.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")}
	put(t, w.DB, rw(w.Nodes), &narrow)
	require.False(t, denied(), "no pod of the node may have the address")
	put(t, w.DB, rw(w.Nodes), node)
	require.True(t, denied())
}
