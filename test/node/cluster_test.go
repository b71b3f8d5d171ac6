package node_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// startCluster creates nodes on one underlay, each with a running agent.
func startCluster(t *testing.T, nodes int, agentArgs ...string) *nodekit.Cluster {
	t.Helper()
	c := newCluster(t, nodes, agentArgs...)
	startAgents(t, c)
	return c
}

func newCluster(t *testing.T, nodes int, agentArgs ...string) *nodekit.Cluster {
	t.Helper()
	testnet.RequirePrivileges(t)
	c, err := nodekit.NewCluster(nodekit.Options{BinDir: binDir, AgentArgs: agentArgs}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range c.Nodes {
			if t.Failed() {
				t.Logf("the log of the agent of %s:\n%s", n.Name(), n.AgentLog())
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func startAgents(t *testing.T, c *nodekit.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		if err := n.StartAgent(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		waitReady(t, n)
	}
}

// startKubeCluster starts nodes that share the objects of an API server. Each node has a replica of the server on its loopback.
func startKubeCluster(t *testing.T, nodes int, agentArgs ...string) []kubeNode {
	t.Helper()
	c, all := newKubeCluster(t, nodes, agentArgs...)
	startAgents(t, c)
	return all
}

// newKubeCluster does the same as startKubeCluster without running agents. Pods get identities of the cluster however late the API server replies, unless
// agentArgs contain another time.
func newKubeCluster(t *testing.T, nodes int, agentArgs ...string) (*nodekit.Cluster, []kubeNode) {
	t.Helper()
	c := newCluster(t, nodes, append([]string{noProvisional}, agentArgs...)...)
	var all []kubeNode
	for _, n := range c.Nodes {
		k := kubeNode{Node: n}
		if err := n.Do(func() error {
			if len(all) == 0 {
				k.server = kubetest.New(t)
			} else {
				k.server = all[0].server.Replica(t)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		n.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+k.server.URL(), "--ipam=kubernetes")
		k.putNode(n.UplinkAddr(false), n.UplinkAddr(true))
		all = append(all, k)
	}
	all[0].server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	return c, all
}

// putNode creates or updates the Node object with these addresses and the ranges of their families.
func (n kubeNode) putNode(addrs ...netip.Addr) {
	ranges := slices.DeleteFunc(n.PodRanges(), func(cidr string) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is6() == strings.Contains(cidr, ":") })
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name(), UID: types.UID("uid-" + n.Name())},
		Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges}}
	for _, addr := range addrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	n.server.Put(node)
}

// Two agents run on two nodes of one underlay, each with pods of its own range. The nodes reach each other in both families, and so do the pods, through the
// tunnel. One agent keeps running when the other is killed.
func TestPrivilegedCluster_AgentsSideBySideOnOneUnderlay(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, "--routing-mode=tunnel")
	one, two := c.Nodes[0], c.Nodes[1]
	pods := map[*nodekit.Node]*nodekit.Pod{one: addPod(t, one, "a"), two: addPod(t, two, "b")}
	for _, n := range c.Nodes {
		awaitTunnel(t, n, 2)
	}
	reach := func(t *testing.T) {
		for _, family := range families {
			for _, path := range []struct {
				name     string
				from, to *nodekit.Node
			}{{"first to second", one, two}, {"second to first", two, one}} {
				t.Run(family.name+" "+path.name, func(t *testing.T) {
					addr := path.to.UplinkAddr(family.ipv6)
					if err := nodekit.Ping(path.from.Host(), addr, 4000); err != nil {
						t.Error(err)
					}
					if err := nodekit.TCP(path.from.Host(), path.to.Host(), addr, 1<<16); err != nil {
						t.Error(err)
					}
					if err := nodekit.UDP(path.from.Host(), path.to.Host(), addr, 100); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
	t.Run("both run", reach)
	reachBetween(t, one, two, pods)
	reachBetween(t, two, one, pods)
	for _, family := range families {
		if a, b := pods[one].Addr(family.ipv6), pods[two].Addr(family.ipv6); a == b {
			t.Errorf("both pods have the address %s", a)
		}
		for _, n := range c.Nodes {
			if err := nodekit.Ping(n.Host(), pods[n].Addr(family.ipv6), 56); err != nil {
				t.Errorf("%s and its pod: %v", n.Name(), err)
			}
		}
	}
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("one runs", reach)
	addPod(t, one, "c")
}

// Pods of two nodes reach each other in both families by routes between the nodes, without a tunnel.
func TestPrivilegedCluster_NativeRouting_PodsReachEachOther(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes")
	one, two := c.Nodes[0], c.Nodes[1]
	pods := map[*nodekit.Node]*nodekit.Pod{one: addPod(t, one, "a"), two: addPod(t, two, "b")}
	for _, n := range c.Nodes {
		eventually(t, func() error { return routesTo(t, n, 2) })
	}
	reachBetween(t, one, two, pods)
	reachBetween(t, two, one, pods)
}
