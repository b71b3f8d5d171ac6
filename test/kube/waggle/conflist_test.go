package waggle_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// besideOtherConfigurations tests a node with two configurations of another plugin, one before and one after Waggle's in the order of names.
func besideOtherConfigurations(t *testing.T, shared *kube.Cluster) {
	c, n := shared.Tenant(t, kube.NodeOptions{})
	assign(t, n, podCIDRs(n, 0)[0])
	const folder, foreign = "/etc/cni/net.d/", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "other"}]}`
	others := []string{folder + "00-other.conflist", folder + "10-other.conflist"}
	for _, path := range others {
		if err := n.WriteFile(path, foreign, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := agent(t, n, "--ipam=kubernetes", "--enable-ipv6=false")
	requireStatus(t, c, n, "00-other.conflist")
	for _, path := range others {
		if text, err := n.ReadFile(path); err != nil || text != foreign {
			t.Errorf("%s is not as it was: %v\n%s", path, err, text)
		}
	}

	// Without the first one, the runtime uses Waggle's configuration although the other one exists.
	if _, err := n.Run(t.Context(), "rm", others[0]); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitAgentReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	known(t, c, n, runPod(t, c, "ours", n))
	stop(t, p)

	// With --cni-exclusive, the agent renames the other configurations.
	if err := n.WriteFile(others[0], foreign, 0o644); err != nil {
		t.Fatal(err)
	}
	p = readyAgent(t, n, "--ipam=kubernetes", "--enable-ipv6=false", "--cni-exclusive")
	if err := c.WaitFor(t.Context(), "the others to be put aside", func() error {
		out, err := n.Run(t.Context(), "ls", folder)
		if err == nil && strings.Join(strings.Fields(out), " ") != "00-other.conflist.waggle_bak 05-waggle.conflist 10-other.conflist.waggle_bak" {
			err = fmt.Errorf("there are %s", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	stop(t, p)
}

// requireStatus waits until the status contains a text.
func requireStatus(t *testing.T, c *kube.Cluster, n *kube.Node, what string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "the status to mention "+what, func() error {
		out, err := n.Waggle(t.Context(), "status")
		if !strings.Contains(out, what) {
			return fmt.Errorf("%v, it says\n%s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
