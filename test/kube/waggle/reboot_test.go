package waggle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/kube"
)

// interval of the two scans that find an endpoint without a link; the default is 10 s.
const interval = 3 * time.Second

// endedMeanwhile deletes pods while the agent is stopped, one with and one without a queued deletion, and then simulates two power failures: one that clears
// the agent's files in /run and one that keeps them. Resources of deleted pods must be removed; the other pods must work again.
func endedMeanwhile(t *testing.T, shared *kube.Cluster) {
	c, n := installedNode(t, shared, kube.NodeOptions{OwnDaemonSet: true})
	for _, name := range []string{"a", "b", "queued", "unheard"} {
		if err := c.CreatePod(t.Context(), kube.Pod{Name: name, Node: n.Name}); err != nil {
			t.Fatal(err)
		}
	}
	attached(t, c, n, "a", "b", "queued", "unheard")
	var lasting []endpoint
	for _, e := range endpointsOf(t, n) {
		if e.K8sPodName == "a" || e.K8sPodName == "b" {
			lasting = append(lasting, e)
		}
	}

	if err := c.WithdrawAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	endUnheard(t, c, n, "unheard")
	if err := c.DeletePod(t.Context(), "queued"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := c.ReturnAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := fmt.Sprint(endpointsOf(t, n)); strings.Contains(now, "queued") {
		t.Errorf("an agent that is ready has not heard what was queued: %s", now)
	}
	attached(t, c, n, "a", "b")
	t.Logf("the endpoint without a DEL was removed %s after the agent was scheduled again", time.Since(began).Round(10*time.Millisecond))
	if err := sameEndpoints(t, n, lasting); err != nil {
		t.Error(err)
	}
	if err := c.WaitFor(t.Context(), "the table to report the removed endpoint", func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "collected-endpoints")
		if err == nil && !strings.Contains(out, "unheard") {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}

	for _, keep := range []bool{false, true} {
		began := time.Now()
		reboot(t, n, keep)
		attached(t, c, n, "a", "b")
		t.Logf("with /run/waggle kept %t, pods talk %s after the power went", keep, time.Since(began).Round(10*time.Millisecond))
	}
}

// endUnheard deletes a pod by force and removes the plugin's queued deletion. The plugin gets one DEL when the sandbox is stopped and another one when
// kubelet's garbage collection removes the sandbox, which takes up to a minute: endUnheard removes the queue entry after both.
func endUnheard(t *testing.T, c *kube.Cluster, n *kube.Node, pod string) {
	t.Helper()
	sandbox := sandboxOf(t, n, pod)
	if sandbox == "" {
		t.Fatalf("pod %s has no sandbox", pod)
	}
	if _, err := c.Kubectl(t.Context(), "delete", "pod", pod, "--force", "--grace-period=0"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the runtime to remove the sandbox", func() error {
		sandboxes, err := n.Run(t.Context(), "ctr", "-n", "k8s.io", "container", "list", "-q")
		if err == nil && slices.Contains(strings.Fields(sandboxes), sandbox) {
			err = fmt.Errorf("sandbox %s is there", sandbox)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "sh", "-c", "cd /run/waggle/deleteQueue && grep -l . *.delete && rm *.delete"); err != nil {
		t.Fatalf("the plugin has not queued the deletion: %v", err)
	}
}

// reboot turns the node's power off and on. With keep, the agent's files in /run survive, as on a disk.
func reboot(t *testing.T, n *kube.Node, keep bool) {
	t.Helper()
	run := func(args ...string) {
		t.Helper()
		if _, err := n.Run(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	if keep {
		run("cp", "-a", "/run/waggle", "/var/kept")
	}
	if err := errors.Join(n.PowerOff(), n.PowerOn(t.Context())); err != nil {
		t.Fatal(err)
	}
	if keep {
		run("cp", "-a", "/var/kept", "/run/waggle")
	}
	if err := n.StartKubelet(); err != nil {
		t.Fatal(err)
	}
}

// attached waits until exactly these pods are attached: an endpoint for each with the addresses in the cluster, no other link, address or file, and all pods
// answer.
func attached(t *testing.T, c *kube.Cluster, n *kube.Node, pods ...string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), fmt.Sprintf("just %v to be attached", pods), func() error {
		if err := n.WaitAgentReady(t.Context()); err != nil {
			return err
		}
		if err := passed(t, n); err != nil {
			return err
		}
		return onlyThese(t, c, n, pods)
	}); err != nil {
		t.Fatal(err)
	}
}

func onlyThese(t *testing.T, c *kube.Cluster, n *kube.Node, pods []string) error {
	t.Helper()
	all, err := readRows[endpoint](t, n, "endpoints")
	if err != nil {
		return err
	}
	client := containersOf(t, n)[pods[0]]
	var names, addresses, links, files []string
	for _, e := range all {
		ips, err := c.PodIPs(t.Context(), e.K8sPodName)
		if err != nil || !slices.Equal(ips, []string{e.IPv4, e.IPv6}) || e.Quarantine != "" || e.ContainerID != sandboxOf(t, n, e.K8sPodName) {
			return fmt.Errorf("%+v belongs to a pod with the addresses %v, %w", e, ips, err)
		}
		for _, ip := range ips {
			if err := pingOnce(t.Context(), n, client, ip); err != nil {
				return err
			}
		}
		names, addresses = append(names, e.K8sPodName), append(addresses, ips...)
		links, files = append(links, e.HostIfName), append(files, fmt.Sprint(e.ID, ".json"))
	}
	claimed, err := readRows[struct{ Addr, State, Attachment string }](t, n, "ipam-addresses")
	if err != nil {
		return err
	}
	var leases []string
	for _, a := range claimed {
		if a.Attachment != "" && a.State != "quarantined" {
			leases = append(leases, a.Addr)
		}
	}
	is, err := n.Run(t.Context(), "sh", "-c", `ip -o link | sed -n 's/^[0-9]*: \(lxc[0-9a-f]*\).*/\1/p'; ls /run/waggle/endpoints`)
	if err != nil {
		return err
	}
	for _, pair := range [][2][]string{{names, slices.Clone(pods)}, {addresses, leases}, {append(links, files...), strings.Fields(is)}} {
		slices.Sort(pair[0])
		if slices.Sort(pair[1]); !slices.Equal(pair[0], pair[1]) {
			return fmt.Errorf("the endpoints have %v, there are %v", pair[0], pair[1])
		}
	}
	return nil
}
