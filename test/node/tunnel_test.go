package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// awaitTunnel waits until a node has its tunnel and routes into it.
func awaitTunnel(t *testing.T, n *nodekit.Node, routes int) {
	t.Helper()
	eventually(t, func() error {
		text, err := n.Waggle(t.Context(), "db", "show", "overlays")
		if err == nil && (!strings.Contains(text, "true") || !strings.Contains(text, "Done")) {
			err = fmt.Errorf("the tunnel is not there:\n%s", text)
		}
		return errors.Join(err, routesTo(t, n, routes))
	})
}

// Pods of three nodes reach each other and the nodes through the tunnel, with an underlay that has no route to any pod, also while an agent is dead. The
// removal of a node deletes its routes only.
func TestPrivilegedTunnel_PodsOfDifferentNodes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, "--routing-mode=tunnel")
	one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range c.Nodes {
		pods[n] = addPod(t, n, "pod-"+n.Name())
	}
	awaitTunnel(t, one, 2) // the ranges of the other two adjoin
	awaitTunnel(t, two, 4)
	awaitTunnel(t, three, 4)
	t.Run("all run", func(t *testing.T) {
		for _, from := range c.Nodes {
			for _, to := range c.Nodes {
				if from != to {
					reachBetween(t, from, to, pods)
				}
			}
		}
	})
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("the agent of the second node is dead", func(t *testing.T) {
		reachBetween(t, one, two, pods)
		reachBetween(t, two, three, pods)
	})
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two)
	if err := c.Forget(three); err != nil {
		t.Fatal(err)
	}
	awaitTunnel(t, one, 2)
	awaitTunnel(t, two, 2)
	reachBetween(t, one, two, pods)
	reachBetween(t, two, one, pods)
}
