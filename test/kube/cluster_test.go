package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// TestPrivilegedCluster_RunsAPod proves the kit by itself, with Debian's reference plugins.
func TestPrivilegedCluster_RunsAPod(t *testing.T) {
	c := kube.Start(t, kube.Options{})
	bridged(t, c)
	run(t, c, kube.Pod{Name: "client"})
	ips, err := c.PodIPs(t.Context(), "client")
	if err != nil || len(ips) != 1 {
		t.Fatalf("addresses %v, %v", ips, err)
	}
	out, err := c.Exec(t.Context(), "client", "ip", "address", "show", "eth0")
	if err != nil || !strings.Contains(out, ips[0]+"/24") {
		t.Errorf("want address %s, got %v:\n%s", ips[0], err, out)
	}
	if err := c.DeletePod(t.Context(), "client"); err != nil {
		t.Error(err)
	}
}

// TestPrivilegedCluster_NodesAreMachines holds the nodes to what a DaemonSet expects of two machines.
func TestPrivilegedCluster_NodesAreMachines(t *testing.T) {
	c := kube.Start(t, kube.Options{Nodes: 2, ClusterCIDR: kube.DualStackCIDR})
	bridged(t, c)
	before := machine(t)
	for _, n := range c.Nodes {
		mounter := kube.Pod{Name: "mounter-" + n.Name, Node: n.Name, HostNet: true, Privileged: true, HostPaths: map[string]string{
			"/etc/cni": "", "/opt/cni": "", "/var/lib/waggle": "", "/var/run/waggle": "", "/sys/fs/bpf": "Bidirectional", "/sys/fs/cgroup": ""},
			Command: []string{"sh", "-c", "hostname; for d in /etc/cni /opt/cni /var/lib/waggle /var/run/waggle /sys/fs/bpf; do mkdir $d/of-$NODE; done; " +
				"mkdir /sys/fs/bpf/mounted && mount -t bpf bpf /sys/fs/bpf/mounted && sleep 1000000"}}
		run(t, c, mounter)
		for _, dir := range []string{"/etc/cni", "/opt/cni", "/var/lib/waggle", "/run/waggle", "/sys/fs/bpf"} {
			entries, err := n.Run(t.Context(), "ls", dir)
			if err != nil || strings.Count(entries, "of-") != 1 || !strings.Contains(entries, "of-"+n.Name+"\n") {
				t.Errorf("%s of %s holds %q, %v", dir, n.Name, entries, err)
			}
		}
		if _, err := n.Run(t.Context(), "mountpoint", "/sys/fs/bpf/mounted"); err != nil {
			t.Errorf("a mount of a pod does not reach %s: %v", n.Name, err)
		}
		links, err := n.Run(t.Context(), "ls", "/sys/class/net")
		if err != nil || !strings.Contains(links, "eth0\n") {
			t.Errorf("links of %s: %q, %v", n.Name, links, err)
		}
		var object struct{ Spec struct{ PodCIDRs []string } }
		if err := c.GetObject(t.Context(), "/api/v1/nodes/"+n.Name, &object); err != nil || len(object.Spec.PodCIDRs) != 2 {
			t.Errorf("CIDRs of %s: %v, %v", n.Name, object.Spec.PodCIDRs, err)
		}
	}
	run(t, c, kube.Pod{Name: "client", Node: "node-2"})
	if out, err := c.Exec(t.Context(), "client", "ping", "-c", "1", "-W", "2", c.Nodes[1].IPv4); err != nil {
		t.Errorf("a pod does not reach its node: %v\n%s", err, out)
	}
	if after := withoutProcesses(machine(t)); !slices.Equal(withoutProcesses(before), after) {
		t.Errorf("pods have changed the machine\nfrom %q\nto   %q", withoutProcesses(before), after)
	}
}

// TestPrivilegedCluster_SurvivesItsParts ends each component and starts it again.
func TestPrivilegedCluster_SurvivesItsParts(t *testing.T) {
	c := kube.Start(t, kube.Options{})
	bridged(t, c)
	run(t, c, kube.Pod{Name: "early"})
	for _, step := range []func() error{c.StopAPIServer, func() error { return c.StartAPIServer(t.Context()) },
		c.StopControllerManager, c.StartControllerManager, c.StopScheduler, c.StartScheduler,
		c.Nodes[0].StopContainerd, func() error { return c.Nodes[0].StartContainerd(t.Context()) }, c.Nodes[0].RestartKubelet} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, c, kube.Pod{Name: "late"})
	if out, err := c.Exec(t.Context(), "early", "hostname"); err != nil || out != "early\n" {
		t.Errorf("the pod of before says %q, %v", out, err)
	}
	audit := c.AuditLog(t, func(e kube.AuditEvent) bool { return e.User.Username == "system:node:node-1" && e.Verb == "create" })
	if len(audit) == 0 {
		t.Error("the audit log does not show kubelet")
	}
}

func TestPrivilegedWaitFor_NamesWhatHasEnded(t *testing.T) {
	c := kube.Start(t, kube.Options{NoKubelet: true})
	if _, err := c.Nodes[0].Run(t.Context(), "sh", "-c", "kill -9 $(pidof containerd)"); err != nil {
		t.Fatal(err)
	}
	err := c.WaitFor(context.Background(), "the impossible", func() error { return fmt.Errorf("not yet") })
	if err == nil || !strings.Contains(err.Error(), "node-1-containerd has ended: signal: killed") || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("got %v", err)
	}
}

// TestPrivilegedToken_IsThatOfAPodOnTheNode: policies tell nodes apart by what such tokens say.
func TestPrivilegedToken_IsThatOfAPodOnTheNode(t *testing.T) {
	c := kube.Start(t, kube.Options{})
	token, err := c.Token(t.Context(), "default/default", "node-1")
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.Kubectl(t.Context(), "auth", "whoami", "-o", "json", "--token", token)
	var who struct {
		Status struct {
			UserInfo struct {
				Username string
				Extra    map[string][]string
			}
		}
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &who)); err != nil {
		t.Fatal(err)
	}
	nodes := who.Status.UserInfo.Extra["authentication.kubernetes.io/node-name"]
	if who.Status.UserInfo.Username != "system:serviceaccount:default:default" || !slices.Equal(nodes, []string{"node-1"}) {
		t.Errorf("the token is that of %s", out)
	}
}

// bridged makes all nodes ready without Waggle.
func bridged(t *testing.T, c *kube.Cluster) {
	t.Helper()
	for i, n := range c.Nodes {
		if err := n.InstallBridge(fmt.Sprintf("10.0.%d.0/24", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		if err := n.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, c *kube.Cluster, p kube.Pod) {
	t.Helper()
	if err := c.RunPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func withoutProcesses(facts []string) []string {
	return slices.Sorted(slices.Values(slices.DeleteFunc(facts, func(f string) bool { return strings.HasPrefix(f, "process ") })))
}
