package waggle_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// podCIDRChanges changes the pod CIDR of a node, as an administrator does, while a pod of the old range sends traffic.
func podCIDRChanges(t *testing.T, shared *kube.Cluster) {
	c, n := shared.Tenant(t, kube.NodeOptions{})
	const before, after, before6, after6 = "10.50.1.0/24", "10.51.1.0/24", "fd00:50:1::/112", "fd00:51:1::/112"
	annotate := func(ipv4, ipv6 string) {
		t.Helper()
		if _, err := c.Kubectl(t.Context(), "annotate", "--overwrite", "node", n.Name,
			"network.cilium.io/ipv4-pod-cidr="+ipv4, "network.cilium.io/ipv6-pod-cidr="+ipv6); err != nil {
			t.Fatal(err)
		}
	}
	annotate(before, before6)
	p := readyAgent(t, n, "--ipam=kubernetes")
	old := runIn(t, c, n, "old", before, before6)
	hush := talk(t, n, "old", n.IPv4, n.IPv6)
	known(t, c, n, old)

	annotate(after, after6)
	stop(t, p)
	p = readyAgent(t, n, "--ipam=kubernetes")
	routerIn(t, c, n, after, after6)
	fresh := runIn(t, c, n, "new", after, after6)
	known(t, c, n, old)
	known(t, c, n, fresh)
	containers := containersOf(t, n)
	for i := range fresh {
		if err := pingOnce(t.Context(), n, containers["old"], fresh[i]); err != nil {
			t.Errorf("from the old range to the new one: %v", err)
		}
		if err := pingOnce(t.Context(), n, containers["new"], old[i]); err != nil {
			t.Errorf("from the new range to the old one: %v", err)
		}
	}
	hush()

	// The agent removes everything of the old range with its last pod.
	if err := c.DeletePod(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "nothing to be left of the old range's pod", func() error {
		cache, err := kernelCache(t, n)
		if err != nil {
			return err
		}
		text := network(t, n) + cache
		for _, ip := range old {
			if strings.Contains(text, ip+" ") {
				return fmt.Errorf("%s is in\n%s", ip, text)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	stop(t, p)
}

// runIn runs a pod, requires an address from each range, and returns the addresses in the order of the ranges.
func runIn(t *testing.T, c *kube.Cluster, n *kube.Node, name string, cidrs ...string) []string {
	t.Helper()
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.RunPod(t.Context(), kube.Pod{Name: name, Node: n.Name}); err != nil {
		t.Fatal(err)
	}
	ips, err := c.PodIPs(t.Context(), name)
	if err != nil || !inside(ips, cidrs...) {
		t.Fatalf("the pod %s has the addresses %v, %v; want one of each of %v", name, ips, err, cidrs)
	}
	if !netip.MustParsePrefix(cidrs[0]).Contains(netip.MustParseAddr(ips[0])) {
		ips[0], ips[1] = ips[1], ips[0]
	}
	return ips
}

// known requires that the node's routes to a pod's addresses use Waggle's device and that the ipcache map contains the addresses. ADD waits for both, so
// known retries only if the agent does not answer.
func known(t *testing.T, c *kube.Cluster, n *kube.Node, ips []string) {
	t.Helper()
	var cache string
	if err := c.WaitFor(t.Context(), "the agent to show the ipcache", func() (err error) {
		cache, err = kernelCache(t, n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, ip := range ips {
		if route, err := n.Run(t.Context(), "ip", "route", "get", ip); err != nil || !strings.Contains(route, "dev waggle_host") {
			t.Errorf("the route to %s is %q, %v", ip, route, err)
		}
		if !strings.Contains(cache, "addr="+ip+" ") {
			t.Errorf("no row of %s in the ipcache\n%s", ip, cache)
		}
	}
}

// kernelCache returns the ipcache from the kernel's map, not from a table.
func kernelCache(t *testing.T, n *kube.Node) (string, error) {
	return n.Waggle(t.Context(), "map", "get", "ipcache")
}

// registeredAgain deletes the Node of a running agent; kubelet registers another one with the same name.
func registeredAgain(t *testing.T, shared *kube.Cluster) {
	c, n := ranged(t, shared, kube.NodeOptions{Taints: []string{notReadyTaint + "=true:NoSchedule"}})
	p := readyAgent(t, n, "--ipam=kubernetes")
	if err := available(t.Context(), c, n); err == nil {
		t.Error("the network was called available before anything was tried")
	}
	if _, err := n.Run(t.Context(), n.Tool("waggle-agent"), "setup", "--once"); err != nil {
		t.Fatal(err)
	}
	reported := func() {
		t.Helper()
		if err := c.WaitFor(t.Context(), "the taint to go and the network to be available", func() error { return available(t.Context(), c, n) }); err != nil {
			t.Fatal(err)
		}
		owned(t, c, n)
	}
	reported()
	ips := runPod(t, c, "stays", n)
	hush := talk(t, n, "stays", n.IPv4, n.IPv6)

	before := uidOf(t, c, nodePath+n.Name)
	if err := n.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), nodePath+n.Name); err != nil {
		t.Fatal(err)
	}
	// Without a Node, the agent keeps the last range.
	if err := c.WaitFor(t.Context(), "the range to be kept", func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "node-cidrs")
		if err == nil && !strings.Contains(out, "kept") {
			err = fmt.Errorf("the table says\n%s", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	known(t, c, n, ips)
	if err := n.StartKubelet(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitRegistered(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := uidOf(t, c, nodePath+n.Name); after == before {
		t.Fatal("it is the same Node")
	}
	assign(t, n, podCIDRs(n, 1)...) // the previous range may belong to another Node
	reported()
	known(t, c, n, ips)
	hush()
	runPod(t, c, "later", n)
	stop(t, p)
}

func runPod(t *testing.T, c *kube.Cluster, name string, n *kube.Node) []string {
	t.Helper()
	if err := c.RunPod(t.Context(), kube.Pod{Name: name, Node: n.Name}); err != nil {
		t.Fatal(err)
	}
	ips, err := c.PodIPs(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return ips
}

func uidOf(t *testing.T, c *kube.Cluster, path string) string {
	t.Helper()
	var object struct{ Metadata struct{ UID string } }
	if err := c.GetObject(t.Context(), path, &object); err != nil {
		t.Fatal(err)
	}
	return object.Metadata.UID
}

// owned waits until the CiliumNode exists and its owner is the current Node.
func owned(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	uid := uidOf(t, c, nodePath+n.Name)
	if err := c.WaitFor(t.Context(), "the CiliumNode to belong to the Node", func() error {
		var object struct {
			Metadata struct {
				OwnerReferences []struct{ Kind, Name, UID string }
			}
			Spec struct{ IPAM struct{ PodCIDRs []string } }
		}
		if err := c.GetObject(t.Context(), ciliumNodePath+n.Name, &object); err != nil {
			return err
		}
		if o := object.Metadata.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].UID != uid || len(object.Spec.IPAM.PodCIDRs) != 2 {
			return fmt.Errorf("the Node is %s, the CiliumNode %+v", uid, object)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// withoutInternalIP tests a node whose address the cloud controller has not set yet.
func withoutInternalIP(t *testing.T, shared *kube.Cluster) {
	c, n := ranged(t, shared, kube.NodeOptions{KubeletArgs: []string{"--cloud-provider=external", "--node-ip="}})
	out, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", "jsonpath={.status.addresses[*].type}")
	if err != nil || strings.Contains(out, "InternalIP") {
		t.Fatalf("the Node has the addresses %q, %v", out, err)
	}
	p := readyAgent(t, n, "--ipam=kubernetes")
	ips := runTolerant(t, c, n, "early")
	known(t, c, n, ips)
	if err := pingOnce(t.Context(), n, containersOf(t, n)["early"], n.IPv4); err != nil {
		t.Error(err)
	}
	stop(t, p)
}

// runTolerant runs a pod that tolerates the taint of an uninitialized cloud node.
func runTolerant(t *testing.T, c *kube.Cluster, n *kube.Node, name string) []string {
	t.Helper()
	if err := c.MergePatch(t.Context(), nodePath+n.Name, `{"spec": {"taints": null}}`); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return runPod(t, c, name, n)
}

// TestPrivilegedNode_IPv6Only runs the DaemonSet in a cluster whose pods have only IPv6 addresses.
func TestPrivilegedNode_IPv6Only(t *testing.T) {
	t.Parallel()
	c, n := installed(t, kube.Options{ClusterCIDR: "fd00:10:244::/48"}, "--set", "enable-ipv4=false")
	if err := c.WaitFor(t.Context(), "the taint to go and the network to be available", func() error { return available(t.Context(), c, n) }); err != nil {
		t.Fatal(err)
	}
	var all [][]string
	for _, name := range []string{"a", "b"} {
		ips := runPod(t, c, name, n)
		if !inside(ips, "fd00:10:244::/48") {
			t.Fatalf("pod %s has the addresses %v", name, ips)
		}
		known(t, c, n, ips)
		all = append(all, ips)
	}
	for _, peer := range []string{all[1][0], n.IPv6} {
		if err := pingOnce(t.Context(), n, containersOf(t, n)["a"], peer); err != nil {
			t.Error(err)
		}
	}
	if err := n.WaitStatus(t.Context(), func(status string) bool {
		if strings.Contains(status, "10.") && strings.Contains(status, "IPv4 pod CIDR") {
			t.Errorf("there is a range of IPv4:\n%s", status)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
}
