package nodelist

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Retained claims of a node have the lowest precedence.
func TestResolve_RetainedClaims(t *testing.T) {
	t.Parallel()
	saw := newTrustedRanges(agentconfig.Agent{}, nil)
	saw.take("a", prefixes("10.0.1.0/24"))
	saw.retain(&nodes.Node{Name: "a", UID: "uid-a", Source: nodes.CiliumNode, CIDRs: prefixes("10.0.1.0/24"), FromNode: 1, Receives: nodes.ParseReceives("direct"),
		Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr("192.0.2.2")}, {Type: nodes.CiliumInternalIP, Addr: netip.MustParseAddr("10.0.1.1")}}})
	for name, test := range map[string]struct {
		had    *trustedRanges
		nodes  []*k8s.Node
		cilium []*cilium.Node
		want   string // "" without a row
	}{
		"no object":                             {saw, nil, nil, "removed | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1 | 10.0.1.0/24(former) | direct"},
		"another node has the range":            {saw, []*k8s.Node{node("b", 9, "192.0.2.3", "10.0.1.0/24")}, nil, ""},
		"another node has a range around it":    {saw, []*k8s.Node{node("b", 9, "192.0.2.3", "10.0.0.0/16")}, nil, ""},
		"a CiliumNode has the range":            {saw, nil, []*cilium.Node{ciliumNode("b", 9, "192.0.2.3", "10.0.1.0/24")}, ""},
		"addresses of several nodes are inside": {saw, []*k8s.Node{node("b", 9, "10.0.1.7"), node("c", 9, "10.0.1.8")}, nil, ""},
		"another node has the address": {saw, []*k8s.Node{node("b", 9, "192.0.2.2", "10.0.2.0/24")}, nil,
			"removed | CiliumInternalIP=10.0.1.1 | 10.0.1.0/24(former) | direct"},
		"its Node has another range": {saw, []*k8s.Node{node("a", 9, "192.0.2.9", "10.0.2.0/24")}, nil,
			"kubernetes | InternalIP=192.0.2.9,CiliumInternalIP=10.0.1.1 | 10.0.2.0/24,10.0.1.0/24(former) | direct"},
		"its Node has another range, and this agent never saw the former one": {&trustedRanges{}, []*k8s.Node{node("a", 9, "192.0.2.9", "10.0.2.0/24")}, nil,
			"kubernetes | InternalIP=192.0.2.9 | 10.0.2.0/24 | direct"},
		"its CiliumNode is missing": {saw, []*k8s.Node{node("a", 9, "192.0.2.2", "10.0.1.0/24")}, nil,
			"kubernetes | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1 | 10.0.1.0/24 | direct"},
		"both objects exist": {saw, []*k8s.Node{node("a", 9, "192.0.2.2", "10.0.1.0/24")}, []*cilium.Node{ciliumNode("a", 9, "", "10.0.1.0/24")},
			"custom-resource | InternalIP=192.0.2.2 | 10.0.1.0/24"},
	} {
		got := ""
		for _, row := range resolve(self, rules{nodesDecide: true, had: test.had}, test.nodes, test.cilium, saw.retained["a"]) {
			if row.Name == "a" {
				got = formatRow(row)
			}
		}
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}

// retainedRig is a rig with --ipam=kubernetes whose agent reads the files of a directory.
func retainedRig(t *testing.T, dir string) *rig {
	t.Helper()
	r := newRig(t)
	r.Agent.IPAM, r.Had = agentconfig.IPAMKubernetes, loaded(t, dir)
	return r
}

// put writes or deletes the Node and the CiliumNode of a node with one range.
func (r *rig) put(t *testing.T, name, address, cidr string, deleted bool) {
	t.Helper()
	r.write(t, func(txn statedb.WriteTxn) { celltest.PutRow(t, txn, r.nodes, node(name, 1, address, cidr), deleted) })
	r.write(t, func(txn statedb.WriteTxn) {
		celltest.PutRow(t, txn, r.ciliumNodes, ciliumNode(name, 1, address, cidr), deleted)
	})
}

// rowOf returns the formatted row of a node; "" without one.
func (r *rig) rowOf(name string) string {
	row, _, found := r.Table.Get(r.DB.ReadTxn(), nodes.ByName(name))
	if !found {
		return ""
	}
	return formatRow(row)
}

const removedA = "removed | InternalIP=192.0.2.2 | 10.0.1.0/24(former)"

// The Node and then the CiliumNode of a node are deleted. The node keeps its range and its address until the deadline, also over a restart of the agent.
func TestController_DeletedNode_KeepsClaims(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := retainedRig(t, dir)
		r.write(t, r.complete)
		r.put(t, "a", "192.0.2.2", "10.0.1.0/24", false)
		require.Zero(t, r.Had.next())
		r.put(t, "a", "192.0.2.2", "10.0.1.0/24", true)
		require.Equal(t, removedA, r.rowOf("a"))
		require.Equal(t, "1 nodes, 1 more removed (ranges retained)", r.count())
		r.put(t, "other", "192.0.2.5", "10.0.5.0/24", false)
		require.Equal(t, removedA, r.rowOf("a"), "a node with other claims does not end it")
		require.Equal(t, retention, r.Had.next())
		require.NoError(t, saveError(r.Had))

		time.Sleep(4 * time.Minute)
		r = retainedRig(t, dir)
		r.write(t, func(statedb.WriteTxn) {})
		require.Equal(t, removedA, r.rowOf("a"), "before the objects are complete")
		r.write(t, r.complete)
		require.Equal(t, removedA, r.rowOf("a"))
		require.Equal(t, retention-4*time.Minute, r.Had.next())
		time.Sleep(r.Had.next() - 1)
		r.write(t, func(statedb.WriteTxn) {})
		require.Equal(t, removedA, r.rowOf("a"))
		require.True(t, r.Had.has("a", prefixes("10.0.1.0/24")[0]))
		time.Sleep(time.Nanosecond)
		r.write(t, func(statedb.WriteTxn) {})
		require.Empty(t, r.rowOf("a"))
		require.Zero(t, r.Had.next())
		require.NotContains(t, r.resolver.claims, "a")
		require.False(t, r.Had.has("a", prefixes("10.0.1.0/24")[0]))
	})
}

// Another node gets the range of a removed node at once and for good: the range is not a former one again when the other node is removed.
func TestController_RetainedRange_IsTakenOver(t *testing.T) {
	t.Parallel()
	r := retainedRig(t, t.TempDir())
	r.write(t, r.complete)
	r.put(t, "a", "192.0.2.2", "10.0.1.0/24", false)
	r.put(t, "a", "192.0.2.2", "10.0.1.0/24", true)
	require.Equal(t, removedA, r.rowOf("a"))
	r.put(t, "b", "192.0.2.3", "10.0.1.0/24", false)
	require.Empty(t, r.rowOf("a"))
	require.Equal(t, "custom-resource | InternalIP=192.0.2.3 | 10.0.1.0/24", r.rowOf("b"))
	require.Equal(t, "2 nodes", r.count())
	r.put(t, "b", "192.0.2.3", "10.0.1.0/24", true)
	require.Empty(t, r.rowOf("a"))
	require.Equal(t, "removed | InternalIP=192.0.2.3 | 10.0.1.0/24(former)", r.rowOf("b"))
}

// A node joins again under its name with another range. Its CiliumNode does not list its previous range, and a second removal does not extend the deadline.
func TestController_NodeJoinsAgain_KeepsFormerRange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := retainedRig(t, dir)
		r.write(t, r.complete)
		r.put(t, "a", "192.0.2.2", "10.0.1.0/24", false)
		r.put(t, "a", "192.0.2.2", "10.0.1.0/24", true)
		time.Sleep(time.Minute)
		r.put(t, "a", "192.0.2.2", "10.0.2.0/24", false)
		require.Equal(t, "custom-resource | InternalIP=192.0.2.2 | 10.0.2.0/24,10.0.1.0/24(former)", r.rowOf("a"))
		require.Equal(t, "2 nodes", r.count())
		r.put(t, "a", "192.0.2.2", "10.0.2.0/24", true)
		require.Equal(t, "removed | InternalIP=192.0.2.2 | 10.0.2.0/24(former),10.0.1.0/24(former)", r.rowOf("a"))
		time.Sleep(r.Had.next())
		r.write(t, func(statedb.WriteTxn) {})
		require.Equal(t, "removed | InternalIP=192.0.2.2 | 10.0.2.0/24(former)", r.rowOf("a"))
		require.Equal(t, time.Minute, r.Had.next())
	})
}

// The CiliumNode of a malicious agent claims and lists the range of another node, and is deleted. Only accepted claims are retained.
func TestController_RefusedClaims_AreNotRetained(t *testing.T) {
	t.Parallel()
	r := retainedRig(t, t.TempDir())
	r.write(t, r.complete)
	evil := ciliumNode("evil", 0, "192.0.2.2", "10.0.1.0/24", "10.0.5.0/24")
	evil.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.1.0/24,10.0.5.0/24"}
	r.put(t, "a", "192.0.2.2", "10.0.1.0/24", false)
	r.put(t, "evil", "192.0.2.9", "10.0.5.0/24", false)
	r.write(t, func(txn statedb.WriteTxn) { celltest.PutRow(t, txn, r.ciliumNodes, evil, false) })
	r.write(t, func(txn statedb.WriteTxn) { celltest.PutRow(t, txn, r.ciliumNodes, evil, true) })
	r.put(t, "a", "192.0.2.2", "10.0.1.0/24", true)
	require.Equal(t, "kubernetes | InternalIP=192.0.2.9 | 10.0.5.0/24", r.rowOf("evil"))
	require.Equal(t, removedA, r.rowOf("a"))
	r.write(t, func(txn statedb.WriteTxn) { celltest.PutRow(t, txn, r.ciliumNodes, evil, false) })
	require.Equal(t, removedA, r.rowOf("a"), "the Node of the other node has another range")
	require.Equal(t, prefixes("10.0.5.0/24"), r.Had.retained["evil"].Row.CIDRs)
}

func TestTrustedRanges_RetainedNodesAreBounded(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), &bytes.Buffer{}
	s := newTrustedRanges(agentconfig.Agent{StateDir: dir}, slog.New(slog.NewTextHandler(log, nil)))
	row := &nodes.Node{Source: nodes.CiliumNode}
	for i := range 100 {
		row.CIDRs = append(row.CIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24))
		row.Addresses = append(row.Addresses, nodes.Address{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})})
	}
	for i := range maxRetained + 2 {
		now := *row
		now.Name = fmt.Sprint("node-", i)
		s.retain(&now)
	}
	require.Len(t, s.retained, maxRetained)
	require.Equal(t, 1, strings.Count(log.String(), "Cannot keep"), "one warning")
	require.Len(t, s.retained["node-0"].Row.CIDRs, maxNoted)
	require.Len(t, s.retained["node-0"].Until, maxNoted)
	require.Len(t, s.retained["node-0"].Row.Addresses, maxRetainedAddresses)
	s.retain(&nodes.Node{Name: "node-0", CIDRs: row.CIDRs[:1]})
	require.Len(t, s.retained["node-0"].Row.CIDRs, 1, "a node in the list is updated although the list is full")

	// The file has as many nodes as the next run can read.
	require.NoError(t, saveError(s))
	stored := loaded(t, dir).retained
	require.Greater(t, len(stored), 256)
	require.Less(t, len(stored), maxRetained)
	require.Equal(t, s.retained["node-1"].Row, stored["node-1"].Row)
	// Virtual time has no monotonic clock, so this test uses the real one.
	require.Contains(t, stored["node-1"].Until[row.CIDRs[0]].String(), " m=", "a change of the clock moves no deadline")
}

// The clock was set back between two runs: the file has deadlines of the distant future.
func TestTrustedRanges_RetainedDeadlinesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, dir)
		s.retain(&nodes.Node{Name: "a", CIDRs: prefixes("10.0.1.0/24")})
		s.retained["a"].Until[prefixes("10.0.1.0/24")[0]] = time.Now().Add(24 * time.Hour)
		require.NoError(t, saveError(s))
		require.Equal(t, retention, loaded(t, dir).next())
	})
}
