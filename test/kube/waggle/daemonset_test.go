package waggle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

// notReadyTaint excludes pods from a node until the self-test has attached a pod there.
const notReadyTaint = "node.cilium.io/agent-not-ready"

// agentCapabilities are the capabilities that "waggle install" prints for the agent's container.
const agentCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_PERFMON | 1<<unix.CAP_BPF

// TestPrivilegedDaemonSet runs the tests that share a cluster with a default installation of Waggle. Each test adds its own node.
func TestPrivilegedDaemonSet(t *testing.T) {
	t.Parallel()
	shared := kube.Start(t, kube.Options{ClusterCIDR: kube.DualStackCIDR, NodeOptions: kube.NodeOptions{Taints: []string{notReadyTaint + "=true:NoSchedule"}}})
	if err := shared.InstallShared(t.Context(), "--set", "enable-ipv6=true", "--set", "cni-log-file="+pluginLog,
		"--set", "endpoint-gc-interval="+interval.String()); err != nil {
		t.Fatal(err)
	}
	// One replica stays on the cluster's own node, since the nodes of tests are removed.
	if err := shared.MergePatch(t.Context(), "/apis/apps/v1/namespaces/kube-system/deployments/waggle-cluster", `{"spec": {"replicas": 1}}`); err != nil {
		t.Fatal(err)
	}
	share(t, shared, []sharing{
		{"Restart_ClientsUndisturbed", restartsUnnoticed},
		{"Restart_PodsEndedMeanwhile", endedMeanwhile},
		{"Policy_OfARealKubernetes", policyOfARealKubernetes},
		{"Pods_ManyAtOnce", manyAtOnce},
		{"RunsWithPrintedManifests", runsWithPrintedManifests},
		{"PodCIDR_FromControllerManager", podCIDRFromControllerManager},
		{"MTU_RunningPodsFollow", runningPodsFollowMTU},
	})
}

// installedNode adds a node to a cluster with Waggle and waits until the node's agent is ready.
func installedNode(t *testing.T, shared *kube.Cluster, options kube.NodeOptions) (*kube.Cluster, *kube.Node) {
	t.Helper()
	options.Taints = append(options.Taints, notReadyTaint+"=true:NoSchedule")
	c, n := shared.Tenant(t, options)
	if err := c.WaitWaggle(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, n
}

// runsWithPrintedManifests tests the printed manifests on a node without a BPF file system, without Waggle's plugin, and with the taint that only a passed
// self-test removes; then it runs a pod.
func runsWithPrintedManifests(t *testing.T, shared *kube.Cluster) {
	c, n := installedNode(t, shared, kube.NodeOptions{NoBPFFS: true})
	if err := c.WaitFor(t.Context(), "the taint to go and the network to be available", func() error { return available(t.Context(), c, n) }); err != nil {
		t.Error(err)
		status, err := n.Waggle(t.Context(), "status")
		t.Fatalf("the agent's status: %v\n%s", err, status)
	}
	if err := c.WaitFor(t.Context(), "the self-test to pass", func() error { return passed(t, n) }); err != nil {
		t.Error(err)
	}
	for program, want := range map[string]uint64{"waggle-agent --config-dir": agentCapabilities, "waggle-agent setup": 0} {
		if err := hasCapabilities(t.Context(), n, program, want); err != nil {
			t.Error(err)
		}
	}
	if err := n.WaitStatus(t.Context(), func(status string) bool {
		if strings.Contains(status, "not permitted") || strings.Contains(status, "read-only") {
			t.Errorf("the agent lacks a right:\n%s", status)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	if err := c.RunPod(t.Context(), kube.Pod{Name: "client"}); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(t.Context(), "client", "ping", "-c", "1", "-W", "15", n.IPv4); err != nil {
		t.Errorf("a pod does not reach its node: %v\n%s", err, out)
	}
	if err := c.DeletePod(t.Context(), "client"); err != nil {
		t.Error(err)
	}
}

func available(ctx context.Context, c *kube.Cluster, n *kube.Node) error {
	var node struct {
		Spec   struct{ Taints []struct{ Key string } }
		Status struct {
			Conditions []struct{ Type, Status, Reason string }
		}
	}
	if err := c.GetObject(ctx, path.Join("/api/v1/nodes", n.Name), &node); err != nil {
		return err
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == notReadyTaint {
			return fmt.Errorf("%s has the taint %s", n.Name, taint.Key)
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "NetworkUnavailable" && condition.Status == "False" {
			return nil
		}
	}
	text, _ := json.Marshal(node.Status.Conditions)
	return fmt.Errorf("%s is not called reachable: %s", n.Name, text)
}

// hasCapabilities returns nil if exactly one process of the node runs program and it has exactly the capabilities want.
func hasCapabilities(ctx context.Context, n *kube.Node, program string, want uint64) error {
	out, err := n.Run(ctx, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline)" in */"`+program+`"*) cat $p/status;; esac; done`)
	if err != nil {
		return err
	}
	found := 0
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "CapPrm", "CapEff", "CapBnd":
			found++
			if got, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil || got != want {
				return fmt.Errorf("%s: %s is %s, want %016x", program, name, strings.TrimSpace(value), want)
			}
		}
	}
	if found != 3 {
		return fmt.Errorf("%s: want one process, got:\n%s", program, out)
	}
	return nil
}
