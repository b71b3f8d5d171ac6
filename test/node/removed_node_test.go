package node_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The objects of a node are deleted while its pods run: the Node and the CiliumNode, then the CiliumEndpoints. The pods keep their identities on the other node
// while they have CiliumEndpoints, and are unknown afterwards, also after a restart of the agent of the other node. They are never the world, and packets to
// them keep the addresses of pods. The node joins again.
func TestPrivilegedNative_PodsOfRemovedNode(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) { podsOfRemovedNode(t, startNativePair(t, ipam)) })
}

func TestPrivilegedTunnel_PodsOfRemovedNode(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) { podsOfRemovedNode(t, startTunnelPair(t, ipam)) })
}

func podsOfRemovedNode(t *testing.T, p nodePair) {
	t.Helper()
	one, two := p.near, p.far
	open := one.startPod(t, "open", map[string]string{"app": "open"})
	client := two.startPod(t, "client", map[string]string{"app": "client"})
	number := two.identityOfCluster(t, client).Identity
	known := func(t *testing.T) {
		for _, family := range families {
			awaitIdentity(t, one, client.Addr(family.ipv6), number)
			one.awaitRow(t, "ipcache", clusternodes.Whole(client.Addr(family.ipv6)).String())
		}
	}
	verdicts := func(t *testing.T) {
		p.checkReaches(t, client, open)
		p.checkNotWorld(t, client)
	}
	known(t)
	t.Run("before", verdicts)

	if err := two.StopAgent(t.Context()); err != nil { // it would create the CiliumEndpoint again
		t.Fatal(err)
	}
	two.server.Remove(kubeapi.Nodes, "", two.Name())
	two.server.Remove(kubeapi.CiliumNodes, "", two.Name())
	former := func() {
		one.awaitRow(t, "nodes", string(nodes.Removed))
		p.awaitFormer(t)
	}
	former()
	known(t)
	t.Run("the node is removed", verdicts)

	two.server.Remove(kubeapi.CiliumEndpoints, "default", "client")
	for _, family := range families {
		one.awaitNoRow(t, "ipcache", clusternodes.Whole(client.Addr(family.ipv6)).String())
	}
	t.Run("the pod has no object", verdicts)
	if err := errors.Join(one.StopAgent(t.Context()), one.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	former()
	t.Run("the agent has restarted", verdicts)

	if two.putNode(two.UplinkAddr(false), two.UplinkAddr(true)); p.ipam == agentconfig.IPAMClusterPool {
		two.putRanges(two.PodRanges()...)
	}
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	number = two.identityOfCluster(t, client).Identity
	known(t)
	t.Run("the node has joined again", verdicts)
}

// forgetRemoved waits until a node knows that another node is removed, and ends the retention of the claims of that node: it stops the agent, deletes the file
// of these claims and starts the agent.
func forgetRemoved(t *testing.T, n *nodekit.Node) {
	t.Helper()
	kubeNode{Node: n}.awaitRow(t, "nodes", string(nodes.Removed))
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(n.StateDir(), "former-ranges", "removed.json")), n.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n)
}

// withoutRetained removes the facts about claims that a node retains of removed nodes: their names, addresses and former ranges.
func (o *oracle) withoutRetained(t *testing.T, n *oracleNode, has, want []string) ([]string, error) {
	t.Helper()
	text, err := n.Waggle(t.Context(), "db", "show", "nodes", "-o", "json")
	if err != nil {
		return nil, err
	}
	var rows []nodes.Node
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, err
	}
	var retained []string
	for _, row := range rows {
		for _, p := range row.CIDRs[len(row.CIDRs)-row.Former:] {
			retained = append(retained, p.String())
		}
		if row.Source != nodes.Removed {
			continue
		}
		retained = append(retained, row.Name)
		for _, a := range row.Addresses {
			retained = append(retained, a.Addr.String())
		}
	}
	return slices.DeleteFunc(has, func(fact string) bool {
		about := slices.ContainsFunc(strings.Fields(fact), func(word string) bool { return slices.Contains(retained, word) })
		return about && !slices.Contains(want, fact)
	}), nil
}
