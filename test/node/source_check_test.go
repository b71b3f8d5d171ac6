package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/test/nodekit"
)

// sourceCheck returns rules for the bridge between nodes, which drop packets of a node with foreign source addresses, as the network of a cloud does by
// default. Neighbour discovery passes.
func sourceCheck(nodes ...kubeNode) (rules []string) {
	for _, n := range nodes {
		rules = append(rules, fmt.Sprintf("iifname %s ip saddr != %s drop", n.Name(), n.UplinkAddr(false)), sourceCheckIPv6(n))
	}
	return rules
}

func sourceCheckIPv6(n kubeNode) string {
	return fmt.Sprintf("iifname %s ip6 saddr != { ::, fe80::/10, %s } drop", n.Name(), n.UplinkAddr(true))
}

// degraded waits until the Node has the condition of bad paths with a part of its message.
func (n kubeNode) degraded(t *testing.T, part string) {
	t.Helper()
	eventually(t, func() error {
		var object corev1.Node
		if !n.server.Get(kubeapi.Nodes, "", n.Name(), &object) {
			return fmt.Errorf("Node %s is gone", n.Name())
		}
		for _, c := range object.Status.Conditions {
			if string(c.Type) == k8s.PathsCondition && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, part) {
				return nil
			}
		}
		return fmt.Errorf("no condition %s=True with %q: %v", k8s.PathsCondition, part, object.Status.Conditions)
	})
}

// notDirect waits until the metrics of a node count the given number of nodes to which packets of pods are lost without a tunnel.
func notDirect(t *testing.T, n *nodekit.Node, want float64) {
	t.Helper()
	const name = `waggle_path_faults{fault="not-direct"}`
	eventually(t, func() error {
		samples, err := scrape(n)
		if got, found := samples[name]; err == nil && (!found || got != want) {
			err = fmt.Errorf("%s is %v, want %v", name, got, want)
		}
		return err
	})
}

// The network drops packets with addresses of pods. Without a tunnel, nodes reach each other, and pods do not: both nodes report that and the remedy. They also
// do so when the check begins while pods have connections, when it applies to one node only, and in one family only.
func TestPrivilegedNative_SourceCheckOfACloud(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes", "--prometheus-serve-addr", metricsAddress)
	one, two := all[0], all[1]
	onBridge(t, one.Node, sourceCheck(all...)...)
	startAgents(t, c)
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range all {
		pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": n.Name()})
	}
	paths := func(text string) {
		t.Helper()
		pathsOf(t, one.Node, map[string]string{"node-2": text})
		pathsOf(t, two.Node, map[string]string{"node-1": text})
	}
	const lost = "packets of pods to node node-2 are lost"
	paths("not-direct")
	shows(t, one.Node, "status", "0/1 passed, 1 failed", lost+", from 10.244.1.", "(the node itself answers): turn off the check of source and destination of machines in a cloud",
		"or use --routing-mode=tunnel or hybrid")
	shows(t, one.Node, "node list", "not-direct")
	shows(t, one.Node, "db show path-tests", lost)
	notDirect(t, one.Node, 1)
	one.degraded(t, lost)
	for _, f := range families {
		if err := errors.Join(nodekit.Ping(one.Host(), two.UplinkAddr(f.ipv6), 56), nodekit.Ping(two.Host(), one.UplinkAddr(f.ipv6), 56)); err != nil {
			t.Errorf("%s: the nodes do not reach each other: %v", f.name, err)
		}
		if err := nodekit.PingBriefly(pods[one.Node], pods[two.Node].Addr(f.ipv6), 56); err == nil {
			t.Errorf("%s: the network of this test passes packets of pods", f.name)
		}
	}

	onBridge(t, one.Node)
	paths("ok")
	notDirect(t, one.Node, 0)
	reachBetween(t, one.Node, two.Node, pods)
	reachBetween(t, two.Node, one.Node, pods)

	onBridge(t, one.Node, sourceCheckIPv6(two))
	paths("not-direct")
	shows(t, one.Node, "status", lost+", from fd00:10:244:1:")
	onBridge(t, one.Node)
	paths("ok")
}

// The same network in hybrid mode: pods use the tunnel, and both nodes report the check, also when it begins while they reach each other directly.
func TestPrivilegedHybrid_SourceCheckOfACloud(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 2, "--routing-mode=hybrid", "--prometheus-serve-addr", metricsAddress)
	one := all[0]
	onBridge(t, one.Node, sourceCheck(all...)...)
	startAgents(t, c)
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range all {
		pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": n.Name()})
	}
	throughTheTunnel := func() {
		t.Helper()
		for i, n := range all {
			other := all[1-i]
			modesOf(t, n.Node, map[string]nodepaths.Mode{other.Name(): nodepaths.Tunnel})
			pathsOf(t, n.Node, map[string]string{other.Name(): "not-direct"})
			shows(t, n.Node, "status", "packets of pods to node "+other.Name()+" are lost past the tunnel", "turn off the check of source and destination of machines in a cloud")
			notDirect(t, n.Node, 1)
			reachBetween(t, n.Node, other.Node, pods)
		}
	}
	throughTheTunnel()
	onBridge(t, one.Node)
	bothDirect(t, all)
	onBridge(t, one.Node, sourceCheck(all...)...) // of one node only: its replies soon use the tunnel, and the other node keeps sending directly
	throughTheTunnel()
}
