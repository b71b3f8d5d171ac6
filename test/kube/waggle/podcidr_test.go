package waggle_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

const nodePath, ciliumNodePath = "/api/v1/nodes/", "/apis/cilium.io/v2/ciliumnodes/"

// podCIDRFromEachSource tests each source of pod CIDRs on a cluster whose controller manager allocates none.
func podCIDRFromEachSource(t *testing.T, shared *kube.Cluster) {
	c, n := shared.Tenant(t, kube.NodeOptions{})
	annotate := func(ipv4, ipv6 string) {
		t.Helper()
		if _, err := c.Kubectl(t.Context(), "annotate", "--overwrite", "node", n.Name,
			"network.cilium.io/ipv4-pod-cidr="+ipv4, "network.cilium.io/ipv6-pod-cidr="+ipv6); err != nil {
			t.Fatal(err)
		}
	}

	// A CIDR is required and no source provides one: the agent waits, and its status reports this.
	p := agent(t, n, "--ipam=kubernetes")
	waitsFor(t, c, n, "IPv4 pod CIDR in the Node "+n.Name)

	// The agent rejects unusable candidates and reports the reason.
	annotate("10.50.1.0/99", "10.50.1.0/24")
	for _, want := range []string{"not a CIDR", "the annotation is for IPv6"} {
		requireRejected(t, c, n, want)
	}

	// Annotations that are set while the agent runs.
	annotate("10.50.1.0/24", "fd00:50:1::/112")
	routerIn(t, c, n, "10.50.1.0/24", "fd00:50:1::/112")
	stop(t, p)

	// Annotations that change before a restart.
	annotate("10.51.1.0/24", "fd00:51:1::/112")
	p = readyAgent(t, n, "--ipam=kubernetes", "--annotate-k8s-node")
	routerIn(t, c, n, "10.51.1.0/24", "fd00:51:1::/112")
	stop(t, p)

	// Flags take precedence over the Node. The agent never overwrites foreign annotations, so the test removes these first.
	if _, err := c.Kubectl(t.Context(), "annotate", "node", n.Name, "network.cilium.io/ipv4-pod-cidr-", "network.cilium.io/ipv6-pod-cidr-"); err != nil {
		t.Fatal(err)
	}
	p = readyAgent(t, n, "--ipam=kubernetes", "--ipv4-range=10.52.1.0/24", "--ipv6-range=fd00:52:1::/112", "--annotate-k8s-node")
	routerIn(t, c, n, "10.52.1.0/24", "fd00:52:1::/112")
	if err := c.WaitFor(t.Context(), "the annotations to be written", func() error {
		out, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", "jsonpath={.metadata.annotations}")
		if err == nil && !strings.Contains(out, "10.52.1.0/24") {
			err = fmt.Errorf("they are %s", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	stop(t, p)

	// An annotation that the agent wrote itself is not a candidate for the next agent.
	p = agent(t, n, "--ipam=kubernetes")
	waitsFor(t, c, n, "IPv4 pod CIDR in the Node "+n.Name)
	requireRejected(t, c, n, "written by this agent")
	stop(t, p)

	// In mode cluster-pool, the source is the CiliumNode, which the agent creates.
	p = agent(t, n, "--ipam=cluster-pool")
	if err := c.WaitFor(t.Context(), "the CiliumNode", func() error {
		return c.MergePatch(t.Context(), ciliumNodePath+n.Name, `{"spec": {"ipam": {"podCIDRs": ["10.53.1.0/24", "fd00:53:1::/112"]}}}`)
	}); err != nil {
		t.Fatal(err)
	}
	routerIn(t, c, n, "10.53.1.0/24", "fd00:53:1::/112")
	if err := n.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.RunPod(t.Context(), kube.Pod{Name: "pooled"}); err != nil {
		t.Fatal(err)
	}
	if ips, err := c.PodIPs(t.Context(), "pooled"); err != nil || !inside(ips, "10.53.1.0/24", "fd00:53:1::/112") {
		t.Errorf("the pod has the addresses %v, %v", ips, err)
	}
	stop(t, p)
}

// podCIDRFromControllerManager tests the usual case: the controller manager allocates pod CIDRs.
func podCIDRFromControllerManager(t *testing.T, shared *kube.Cluster) {
	c, n := installedNode(t, shared, kube.NodeOptions{})
	out, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", "jsonpath={.spec.podCIDRs[0]} {.spec.podCIDRs[1]}")
	if err != nil {
		t.Fatal(err)
	}
	cidrs := strings.Fields(out)
	if len(cidrs) != 2 || cidrs[0] == cidrs[1] {
		t.Fatalf("the controller manager gave %q", out)
	}
	routerIn(t, c, n, cidrs...)
}

// nodeNameIsRequired tests that the agent does not guess its node's name: a wrong name would select another node's CIDR.
func nodeNameIsRequired(t *testing.T, shared *kube.Cluster) {
	_, n := shared.Tenant(t, kube.NodeOptions{NoKubelet: true})
	p := agent(t, n, "--ipam=kubernetes", "--node-name=")
	<-p.Done()
	if !strings.Contains(p.Log(), "K8S_NODE_NAME") {
		t.Errorf("the agent says:\n%s", p.Log())
	}
}

func stop(t *testing.T, p *kube.Process) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// waitsFor waits until the agent's status names a missing input.
func waitsFor(t *testing.T, c *kube.Cluster, n *kube.Node, what string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "the status to name what is missing", func() error {
		out, _ := n.Waggle(t.Context(), "status") // fails while the agent is not ready
		if !strings.Contains(out, what) {
			return fmt.Errorf("want %q in:\n%s", what, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// requireRejected waits until a candidate is rejected for a reason.
func requireRejected(t *testing.T, c *kube.Cluster, n *kube.Node, reason string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "a candidate to be refused: "+reason, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "node-cidrs")
		if err == nil && !strings.Contains(out, reason) {
			err = fmt.Errorf("want %q in:\n%s", reason, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// routerIn waits until waggle_host has an address from each range and none from the other ranges of these tests.
func routerIn(t *testing.T, c *kube.Cluster, n *kube.Node, cidrs ...string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "waggle_host to have addresses of "+strings.Join(cidrs, " and "), func() error {
		out, err := n.Run(t.Context(), "ip", "-o", "address", "show", "dev", "waggle_host", "scope", "global")
		if err != nil {
			return err
		}
		var found []string
		for line := range strings.Lines(out) {
			address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
			found = append(found, address)
		}
		if !inside(found, cidrs...) {
			return fmt.Errorf("it has %v", found)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// inside reports whether every address is in one of the ranges and every range contains one.
func inside(addresses []string, cidrs ...string) bool {
	used := map[string]bool{}
	for _, a := range addresses {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return false
		}
		found := false
		for _, cidr := range cidrs {
			if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Contains(addr) {
				used[cidr], found = true, true
			}
		}
		if !found {
			return false
		}
	}
	return len(used) == len(cidrs)
}
