package waggle_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// prepared starts a cluster of the test's own with Waggle's resource definitions and without agents.
func prepared(t *testing.T, options kube.Options) (*kube.Cluster, *kube.Node) {
	t.Helper()
	c := kube.Start(t, options)
	if err := c.ApplyWaggle(t.Context(), "--only", "crds"); err != nil {
		t.Fatal(err)
	}
	if len(c.Nodes) == 0 {
		return c, nil
	}
	return c, c.Nodes[0]
}

// agent starts an agent as a process of the node.
func agent(t *testing.T, n *kube.Node, flags ...string) *kube.Process {
	t.Helper()
	p, err := n.StartAgent(kube.AdminToken, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// readyAgent starts an agent and waits until pods can be attached.
func readyAgent(t *testing.T, n *kube.Node, flags ...string) *kube.Process {
	t.Helper()
	p := agent(t, n, flags...)
	if err := n.WaitAgentReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// rows reads a table of the agent.
func rows[T any](t *testing.T, n *kube.Node, table string) []T {
	t.Helper()
	all, err := readRows[T](t, n, table)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readRows[T any](t *testing.T, n *kube.Node, table string) ([]T, error) {
	out, err := n.Waggle(t.Context(), "db", "show", table, "-o", "json")
	if err != nil {
		return nil, err
	}
	var all []T
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("table %s: %w\n%s", table, err, out)
	}
	return all, nil
}
