package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	podsOfRemovedNode(t, startKubeCluster(t, 2, noProvisional, "--routing-mode=native", "--auto-direct-node-routes"))
}

func TestPrivilegedTunnel_PodsOfRemovedNode(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, noProvisional, "--routing-mode=tunnel")
	for _, n := range all {
		awaitTunnel(t, n.Node, 2)
	}
	podsOfRemovedNode(t, all)
}

func podsOfRemovedNode(t *testing.T, all []kubeNode) {
	t.Helper()
	one, two := all[0], all[1]
	putWorldly(one)
	one.awaitRow(t, "policies", "default/worldly")
	open := one.startPod(t, "open", map[string]string{"app": "open"})
	worldly := one.startPod(t, "worldly", map[string]string{"app": "worldly"})
	client := two.startPod(t, "client", map[string]string{"app": "client"})
	number := two.identityOfCluster(t, client).Identity
	known := func(t *testing.T) {
		for _, family := range families {
			awaitIdentity(t, one, client.Addr(family.ipv6), number)
			one.awaitRow(t, "ipcache", clusternodes.Whole(client.Addr(family.ipv6)).String())
		}
	}
	verdicts := func(t *testing.T) {
		if err := sendUnderOwnAddress(t, open, one, client); err != nil {
			t.Error(err)
		}
		for _, family := range families {
			addr, own := open.Addr(family.ipv6), client.Addr(family.ipv6)
			if err := errors.Join(nodekit.Ping(client, addr, 56), nodekit.TCP(client, open, addr, 1<<16)); err != nil {
				t.Errorf("%s: %v", family.name, err)
			}
			if nodekit.PingBriefly(client, worldly.Addr(family.ipv6), 56) == nil || nodekit.PingBriefly(worldly, own, 56) == nil {
				t.Errorf("%s: the pod passes for the world", family.name)
			}
		}
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
		for _, text := range two.PodRanges() {
			one.awaitRow(t, "nodes", netip.MustParsePrefix(text).Masked().String()+"(former)")
		}
	}
	former()
	known(t)
	t.Run("the node is removed", verdicts)

	two.server.Remove(kubeapi.CiliumEndpoints, "default", "client")
	for _, family := range families {
		entry := clusternodes.Whole(client.Addr(family.ipv6)).String()
		eventually(t, func() error {
			out, err := one.Waggle(t.Context(), "db", "show", "ipcache")
			if err == nil && strings.Contains(out, entry) {
				err = fmt.Errorf("%s is known:\n%s", entry, out)
			}
			return err
		})
	}
	t.Run("the pod has no object", verdicts)
	if err := errors.Join(one.StopAgent(t.Context()), one.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	former()
	t.Run("the agent has restarted", verdicts)

	two.putNode(two.UplinkAddr(false), two.UplinkAddr(true))
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
