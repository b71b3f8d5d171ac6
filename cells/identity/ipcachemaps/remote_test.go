package ipcachemaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// remoteRig is a controller whose passes are run by the test.
type remoteRig struct {
	*remote
	pods  statedb.RWTable[*cilium.Endpoint]
	nodes statedb.RWTable[*nodes.Node]
	table statedb.RWTable[*ipcache.Entry]
}

func newRemoteRig(tb testing.TB, count int) *remoteRig {
	tb.Helper()
	db := statedb.New()
	pods, err1 := cilium.NewEndpointTable(db)
	rows, err2 := nodes.NewTable(db)
	local, err3 := endpoints.NewTable(db)
	known, err4 := identities.NewTable(db)
	progress, err5 := policyprogress.NewTable(db)
	rejected, err6 := refusedclaims.NewTable(db)
	table, err7 := ipcache.NewTable(db)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		require.NoError(tb, err)
	}
	txn := db.WriteTxn(rows, known, progress)
	for i := range count {
		_, _, err := rows.Insert(txn, nodeRow(i))
		require.NoError(tb, err)
	}
	for id := range uint32(1000) {
		_, _, err := known.Insert(txn, &identities.Identity{ID: 256 + id})
		require.NoError(tb, err)
	}
	_, _, err := progress.Insert(txn, policyprogress.Progress{Identities: 1000, Revision: 1})
	require.NoError(tb, err)
	txn.Commit()
	r := newRemote(remoteParams{DB: db, Settings: agentconfig.Agent{NodeName: "here", EnableIPv4: true, EnableIPv6: true}, Pods: pods,
		Nodes: rows, Local: local, Identities: known, Progress: progress, Refused: rejected,
		Writer: newWriter(db, table), Kernel: newFake()})
	require.NoError(tb, r.subscribe())
	tb.Cleanup(r.close)
	return &remoteRig{r, pods, rows, table}
}

// nodeRow returns node i with its range and its address.
func nodeRow(i int) *nodes.Node {
	return &nodes.Node{Name: fmt.Sprint("node-", i), CIDRs: []netip.Prefix{cidr(i)}, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: nodeAddr(i)}}}
}

// putNode inserts or deletes a node.
func (r *remoteRig) putNode(tb testing.TB, n *nodes.Node, deleted bool) {
	tb.Helper()
	txn := r.DB.WriteTxn(r.nodes)
	defer txn.Commit()
	var err error
	if deleted {
		_, _, err = r.nodes.Delete(txn, n)
	} else {
		_, _, err = r.nodes.Insert(txn, n)
	}
	require.NoError(tb, err)
}

func cidr(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), 0}), 24)
}

func nodeAddr(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(node >> 8), byte(node)})
}

// put inserts a pod; its number determines its node and its address in the node's range.
func (r *remoteRig) put(tb testing.TB, i, identity int) {
	tb.Helper()
	node := i / 100
	base := cidr(node).Addr().As4()
	base[3] = byte(1 + i%100)
	txn := r.DB.WriteTxn(r.pods)
	defer txn.Commit()
	_, _, err := r.pods.Insert(txn, cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i),
		Identity: uint32(256 + identity), Node: nodeAddr(node), Host: fmt.Sprint("node-", node), Addrs: []netip.Addr{netip.AddrFrom4(base)}}))
	require.NoError(tb, err)
}

func (r *remoteRig) pass() { r.passWith(false) }

// passWith runs a pass over objects that are complete, or that may be an old copy.
func (r *remoteRig) passWith(complete bool) {
	txn := r.DB.ReadTxn()
	put, remove := r.compute(txn, r.follow(txn, statedb.NewWatchSet()), complete)
	r.Writer.Update(ipcache.OwnerCiliumEndpoints, put, remove, complete)
}

// A copy of the objects is older than the entries that the previous run wrote: pod 0 has another identity now, and the address of pod 1 belongs to another pod.
// No entry gets an older identity until the objects are complete.
func TestRemote_Copy_RestoresNoOlderIdentity(t *testing.T) {
	t.Parallel()
	r := newRemoteRig(t, 1)
	at := func(i byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1 + i}), 32) }
	for i := range byte(3) {
		require.NoError(t, r.Kernel.Put(at(i), value{Identity: 300 + uint32(i)}, netip.Addr{}))
	}
	r.put(t, 0, 1)  // identity 257
	r.put(t, 1, 2)  // identity 258
	r.put(t, 2, 46) // identity 302, same as the entry
	r.put(t, 3, 3)  // without an entry in the maps
	r.pass()
	claims := func() map[netip.Prefix]uint32 {
		have := map[netip.Prefix]uint32{}
		for row := range r.table.All(r.DB.ReadTxn()) {
			have[row.Prefix()] = row.Identity
		}
		return have
	}
	require.Equal(t, map[netip.Prefix]uint32{at(2): 302, at(3): 259}, claims())

	r.put(t, 0, 44) // the first object of the complete list
	r.pass()
	require.Equal(t, map[netip.Prefix]uint32{at(0): 300, at(2): 302, at(3): 259}, claims())

	r.passWith(true)
	require.Equal(t, map[netip.Prefix]uint32{at(0): 300, at(1): 258, at(2): 302, at(3): 259}, claims())
	require.Empty(t, r.kept)
}

// If two pods have one address, the younger pod's object wins in any order of the list: the other object is stale.
func TestRemote_YoungerObjectWins(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int64{{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {0, 3, 0}} {
		r := newRemoteRig(t, 1)
		put := func(created int64, identity uint32) {
			txn := r.DB.WriteTxn(r.pods)
			defer txn.Commit()
			_, _, err := r.pods.Insert(txn, cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("pod-", created), UID: fmt.Sprint("uid-", created), Created: created,
				Identity: identity, Node: nodeAddr(0), Host: "node-0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}))
			require.NoError(t, err)
		}
		for _, created := range order {
			put(created, 300+uint32(created))
			r.pass()
		}
		put(1, 400) // the stale object changes
		r.pass()
		row, _, found := r.table.Get(r.DB.ReadTxn(), ipcache.ByPrefix(netip.MustParsePrefix("10.0.0.1/32")))
		require.True(t, found)
		require.Equal(t, uint32(303), row.Identity, "%v", order)
	}
}

// The agent of one node writes CiliumEndpoints that claim addresses of pods of another node, of nodes and of the world: younger ones, with its own label and
// without, with its own address and the address of the other node. No address changes its identity.
func TestRemote_HostileEndpointsClaimNothing(t *testing.T) {
	t.Parallel()
	r := newRemoteRig(t, 2)
	r.put(t, 0, 1)
	r.pass()
	want := r.claimsNow(r.table)
	require.Equal(t, map[string]string{"10.0.0.1": "257@node-0"}, want)
	claims := []string{"10.0.0.1", "10.0.0.9", "172.16.0.0", "172.16.0.1", "192.0.2.7"}
	i := 0
	for _, host := range []string{"", "node-1"} {
		for _, node := range []netip.Addr{{}, nodeAddr(0), nodeAddr(1)} {
			if host == "" && node == nodeAddr(0) {
				continue // the admission policy requires the label
			}
			for _, text := range claims {
				txn := r.DB.WriteTxn(r.pods)
				change(t, txn, r.pods, cilium.NewEndpoint(cilium.EndpointFields{Namespace: "default", Name: fmt.Sprint("evil-", i), UID: fmt.Sprint(i), Created: 1 << 40,
					Identity: 300, Node: node, Host: host, Addrs: []netip.Addr{netip.MustParseAddr(text)}}), false)
				txn.Commit()
				i++
			}
		}
	}
	r.pass()
	have := map[string]string{}
	for e := range r.table.All(r.DB.ReadTxn()) {
		have[e.Prefix().Addr().String()] = fmt.Sprint(e.Identity, "@", e.Node())
	}
	require.Equal(t, want, have)
	require.Len(t, r.rejected, len(claims))
}

// When a node joins, changes or leaves, only the addresses of its pods, its own addresses and addresses in its ranges are decided again.
func TestRemote_NodeChange_AffectsOnlyItsAddresses(t *testing.T) {
	t.Parallel()
	const count, each = 50, 100
	r := newRemoteRig(t, count)
	for i := range (count + 1) * each { // the pods of the last node are created before the node
		r.put(t, i, i%1000)
	}
	r.pass()
	rows := func() int { return r.table.NumObjects(r.DB.ReadTxn()) }
	require.Equal(t, count*each, rows())
	decide := func(n *nodes.Node, deleted bool) int {
		t.Helper()
		r.putNode(t, n, deleted)
		txn := r.DB.ReadTxn()
		touched := r.follow(txn, statedb.NewWatchSet())
		count := len(touched)
		put, remove := r.compute(txn, touched, false)
		r.Writer.Update(ipcache.OwnerCiliumEndpoints, put, remove, false)
		return count
	}
	last := nodeRow(count)
	require.Equal(t, each, decide(last, false), "it joins")
	require.Equal(t, (count+1)*each, rows())
	labelled := *last
	labelled.UID = "other"
	require.Zero(t, decide(&labelled, false), "what says nothing of pods")
	moved := *last
	moved.Addresses = []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr("172.31.0.1")}}
	require.Equal(t, each, decide(&moved, false), "its pods name its previous address")
	require.Equal(t, (count+1)*each, rows(), "they stay while no node has that address")
	other := *nodeRow(count - 1)
	other.Addresses = append(slices.Clone(other.Addresses), last.Addresses...)
	require.Equal(t, each, decide(&other, false), "a neighbour gets that address")
	require.Equal(t, count*each, rows())
	decide(nodeRow(count-1), false)
	wider := *last
	wider.CIDRs = []netip.Prefix{cidr(count), cidr(count - 1)}
	require.Equal(t, 2*each, decide(&wider, false), "it returns, and claims the range of a neighbour")
	require.Equal(t, 2*each, decide(last, true), "it leaves")
	require.Equal(t, count*each, rows())
}

// claimsNow returns the claim of each address: identity, node, and the reason if it is rejected.
func (r *remote) claimsNow(table statedb.Table[*ipcache.Entry]) map[string]string {
	out := map[string]string{}
	for e := range table.All(r.Writer.db.ReadTxn()) {
		out[e.Prefix().Addr().String()] = fmt.Sprint(e.Identity, "@", e.Node())
	}
	for addr, why := range r.rejected {
		out[addr.String()] += " refused " + string(why.reason)
	}
	return out
}

// TestRemote_MatchesFullPass changes pods and nodes at random, and compares the result with a new controller that processes all rows.
func TestRemote_MatchesFullPass(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	r := newRemoteRig(t, 0)
	pick := func(texts ...string) (some []string) {
		for _, text := range texts {
			if random.IntN(3) == 0 {
				some = append(some, text)
			}
		}
		return some
	}
	cidrs := []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/23", "10.0.0.128/25", "10.0.0.0/8", "fd00::/64", "fd00:0:0:1::/64", "fd00::/62", "fd00::/16"}
	nodeAddrs := []string{"172.16.0.1", "172.16.0.2", "172.16.0.3", "10.0.0.7", "fd00::7"}
	podAddrs := []string{"10.0.0.7", "10.0.0.200", "10.0.1.9", "10.200.0.1", "fd00::7", "fd00:0:0:1::8", "fd00:77::1"}
	node := func(name string) *nodes.Node {
		n := &nodes.Node{Name: name}
		for _, text := range pick(cidrs...) {
			n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
		}
		for _, addr := range pick(nodeAddrs...) {
			n.Addresses = append(n.Addresses, nodes.Address{Type: nodes.InternalIP, Addr: netip.MustParseAddr(addr)})
		}
		return n
	}
	pod := func(name string) *cilium.Endpoint {
		ep := cilium.EndpointFields{Namespace: "default", Name: name, UID: name, Identity: 256 + random.Uint32N(1000), Created: random.Int64N(3)}
		if named := pick(nodeAddrs[:3]...); named != nil {
			ep.Node = netip.MustParseAddr(named[0])
		}
		if hosts := pick("a", "b", "c"); hosts != nil {
			ep.Host = hosts[0]
		}
		for _, addr := range pick(podAddrs...) {
			ep.Addrs = append(ep.Addrs, netip.MustParseAddr(addr))
		}
		return cilium.NewEndpoint(ep)
	}
	believed := 0
	for range 2000 {
		name, deleted := string(rune('a'+random.IntN(4))), random.IntN(4) == 0
		txn := r.DB.WriteTxn(r.nodes, r.pods)
		if random.IntN(3) > 0 {
			change(t, txn, r.nodes, node(name), deleted)
		} else {
			change(t, txn, r.pods, pod(name), deleted)
		}
		txn.Commit()
		r.pass()

		other := statedb.New()
		table, err := ipcache.NewTable(other)
		require.NoError(t, err)
		p := r.remoteParams
		p.Writer = newWriter(other, table)
		whole := remoteRig{remote: newRemote(p)}
		require.NoError(t, whole.subscribe())
		whole.pass()
		whole.close()
		want := whole.claimsNow(table)
		require.Equal(t, want, r.claimsNow(r.table))
		believed += table.NumObjects(other.ReadTxn())
	}
	require.NotZero(t, believed)
}

func change[R any](t *testing.T, txn statedb.WriteTxn, table statedb.RWTable[R], row R, deleted bool) {
	t.Helper()
	var err error
	if deleted {
		_, _, err = table.Delete(txn, row)
	} else {
		_, _, err = table.Insert(txn, row)
	}
	require.NoError(t, err)
}

// BenchmarkRemote_OnePodOfMany measures a change of one pod beside 20,000 others.
func BenchmarkRemote_OnePodOfMany(b *testing.B) {
	r := newRemoteRig(b, manyNodes)
	for i := range manyPods {
		r.put(b, i, i%1000)
	}
	r.pass()
	n := 0
	for b.Loop() {
		n++
		r.put(b, n%manyPods, n%999)
		r.pass()
	}
}

// BenchmarkRemote_NodeJoins measures a node that joins with 30 pods in a cluster of n nodes.
func BenchmarkRemote_NodeJoins(b *testing.B) {
	const each = 30
	for _, nodes := range []int{50, 500, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			r := newRemoteRig(b, nodes)
			for i := range (nodes + 1) * each {
				r.put(b, i/each*100+i%each, i%1000)
			}
			r.pass()
			for b.Loop() {
				r.putNode(b, nodeRow(nodes), false)
				r.pass()
				b.StopTimer()
				r.putNode(b, nodeRow(nodes), true)
				r.pass()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRemote_FirstPass measures the first pass after a start.
func BenchmarkRemote_FirstPass(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		r := newRemoteRig(b, manyNodes)
		for i := range manyPods {
			r.put(b, i, i%1000)
		}
		b.StartTimer()
		r.pass()
	}
}
