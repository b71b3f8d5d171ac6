package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

// TestPrivilegedCluster tests this package without Waggle, with Debian's reference plugins.
func TestPrivilegedCluster(t *testing.T) {
	uncover := plant(t)
	c := kube.Start(t, kube.Options{Nodes: 2, ClusterCIDR: kube.DualStackCIDR})
	uncover()
	t.Run("nodes do not see the machine's network", func(t *testing.T) { nothingPlanted(t, c) })
	bridged(t, c)
	t.Run("a pod runs", func(t *testing.T) { runsAPod(t, c) })
	t.Run("nodes are machines", func(t *testing.T) { nodesAreMachines(t, c) })
	t.Run("a token of a pod on the node", func(t *testing.T) { tokenOfAPod(t, c) })
	t.Run("a tenant has a node and a namespace", func(t *testing.T) { tenants(t, c) })
	t.Run("a wait names ended processes", func(t *testing.T) { namesWhatHasEnded(t, c) })
	t.Run("it survives its parts", func(t *testing.T) { survivesItsParts(t, c) })
}

// planted lists files, by folder, that a machine has if it is a node of another cluster.
var planted = map[string][]string{
	"/etc": {"cni/net.d/00-planted.conflist", "kubernetes/manifests/planted.yaml"},
	"/opt": {"cni/bin/planted"},
	"/var": {"lib/waggle/planted", "lib/cni/planted", "log/pods/planted"},
}

// plant covers folders of the machine, for this program only, with copies that contain additional files. Nodes that are created before the call of uncover
// start from these copies.
func plant(t *testing.T) (uncover func()) {
	t.Helper()
	var covered []string
	uncover = func() {
		for _, dir := range covered {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Errorf("uncover %s: %v", dir, err)
			}
		}
		covered = nil
	}
	t.Cleanup(func() { uncover() })
	for dir, files := range planted {
		copied := filepath.Join("/run/planted", dir)
		if err := copyFolder(dir, copied); err != nil {
			t.Fatalf("copy %s: %v", dir, err)
		}
		for _, file := range files {
			path := filepath.Join(copied, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("{}"), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount(copied, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("cover %s: %v", dir, err)
		}
		covered = append(covered, dir)
	}
	return uncover
}

// copyFolder copies the files that programs need: all of /etc, and only the first level of other folders, which may be large.
func copyFolder(dir, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if dir == "/etc" {
		out, err := exec.Command("cp", "-a", dir+"/.", to).CombinedOutput()
		return errors.Join(err, textError(out))
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(to, e.Name())
		if link, is := os.Readlink(filepath.Join(dir, e.Name())); is == nil { // such as /var/run
			err = errors.Join(err, os.Symlink(link, path))
		} else if e.IsDir() {
			err = errors.Join(err, os.Mkdir(path, 0o755))
		}
	}
	return err
}

func textError(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	return errors.New(string(out))
}

// nothingPlanted requires that nodes have the files of this package and none of the planted files of the machine.
func nothingPlanted(t *testing.T, c *kube.Cluster) {
	for _, n := range c.Nodes {
		out, err := n.Run(t.Context(), "find", "/etc/cni", "/opt/cni", "/etc/kubernetes/manifests", "/var/lib/cni", "/var/lib/waggle", "-type", "f")
		if want := "/opt/cni/bin/loopback\n/etc/kubernetes/manifests/.keep\n"; out != want {
			t.Errorf("%s has the files\n%swant\n%s%v", n.Name, out, want, err) // find fails where there is no such folder
		}
		if out, err := n.Run(t.Context(), "sh", "-c", "ls -d /etc/passwd && find /etc /opt /var -name '*planted*'"); err != nil || out != "/etc/passwd\n" {
			t.Errorf("%s has the machine's planted files, or not its other ones: %v\n%s", n.Name, err, out)
		}
	}
}

func runsAPod(t *testing.T, c *kube.Cluster) {
	run(t, c, kube.Pod{Name: "client", Node: "node-1"})
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

// nodesAreMachines checks the isolation of nodes that a DaemonSet relies on.
func nodesAreMachines(t *testing.T, c *kube.Cluster) {
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
	if out, err := c.Exec(t.Context(), "client", "ping", "-c", "1", "-W", "15", c.Nodes[1].IPv4); err != nil {
		t.Errorf("a pod does not reach its node: %v\n%s", err, out)
	}
	if after := withoutProcesses(machine(t)); !slices.Equal(withoutProcesses(before), after) {
		t.Errorf("pods have changed the machine\nfrom %q\nto   %q", withoutProcesses(before), after)
	}
}

// survivesItsParts stops each component and starts it again.
func survivesItsParts(t *testing.T, c *kube.Cluster) {
	run(t, c, kube.Pod{Name: "early", Node: "node-1"})
	for _, step := range []func() error{c.StopAPIServer, func() error { return c.StartAPIServer(t.Context()) },
		c.StopControllerManager, c.StartControllerManager, c.StopScheduler, c.StartScheduler,
		c.Nodes[0].StopContainerd, func() error { return c.Nodes[0].StartContainerd(t.Context()) }, c.Nodes[0].RestartKubelet} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, c, kube.Pod{Name: "late", Node: "node-1"})
	if out, err := c.Exec(t.Context(), "early", "hostname"); err != nil || out != "early\n" {
		t.Errorf("the pod early prints %q, %v", out, err)
	}
	audit := c.AuditLog(t, func(e kube.AuditEvent) bool { return e.User.Username == "system:node:node-1" && e.Verb == "create" })
	if len(audit) == 0 {
		t.Error("the audit log does not show kubelet")
	}
}

// namesWhatHasEnded stops a component of one tenant and requires that the error names it and the other tenant is unaffected.
func namesWhatHasEnded(t *testing.T, shared *kube.Cluster) {
	other, _ := shared.Tenant(t, kube.NodeOptions{NoKubelet: true})
	c, n := shared.Tenant(t, kube.NodeOptions{NoKubelet: true})
	if _, err := n.Run(t.Context(), "sh", "-c", "kill -9 $(pidof containerd)"); err != nil {
		t.Fatal(err)
	}
	err := c.WaitFor(context.Background(), "the impossible", func() error { return fmt.Errorf("not yet") })
	if err == nil || !strings.Contains(err.Error(), n.Name+"-containerd has ended: signal: killed") || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("got %v", err)
	}
	if err := other.Ended(); err != nil {
		t.Errorf("another tenant is told: %v", err)
	}
}

// tenants runs two tests on one cluster concurrently. Each tenant has a node, and all pods of the tenant's namespace run there regardless of their creator.
// After the tests, the cluster has only its own nodes.
func tenants(t *testing.T, shared *kube.Cluster) {
	var mu sync.Mutex // guards names
	var names []string
	t.Run("beside each other", func(t *testing.T) {
		for range 2 {
			t.Run("tenant", func(t *testing.T) {
				t.Parallel()
				c, n := shared.Tenant(t, kube.NodeOptions{})
				mu.Lock()
				names = append(names, n.Name)
				mu.Unlock()
				if err := errors.Join(n.InstallBridge("10.0.9.0/24"), n.WaitReady(t.Context())); err != nil {
					t.Fatal(err)
				}
				run(t, c, kube.Pod{Name: "pod"})
				if out, err := c.Exec(t.Context(), "pod", "sh", "-c", "echo $NODE"); err != nil || out != n.Name+"\n" {
					t.Errorf("the pod runs on %q, want %s: %v", out, n.Name, err)
				}
				if out, err := c.Kubectl(t.Context(), "get", "pods", "-o", "name"); err != nil || out != "pod/pod\n" {
					t.Errorf("its namespace holds %q, %v", out, err)
				}
				if err := c.StopAPIServer(); err == nil {
					t.Error("a tenant stopped the API server")
				}
			})
		}
	})
	if len(names) != 2 || names[0] == names[1] {
		t.Errorf("the nodes were %v", names)
	}
	for _, name := range names {
		if err := shared.WaitFor(t.Context(), "nothing to be left of "+name, func() error {
			out, err := shared.Kubectl(t.Context(), "get", "nodes,namespaces,pods", "--all-namespaces")
			if err == nil && strings.Contains(out, name) {
				err = errors.New(out)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob("/run/kube-*/" + name)
		for _, dir := range cgroups(t, os.Getenv("WAGGLE_KUBE_INSIDE")) {
			found, failed := filepath.Glob(dir + "/kube-*/" + name)
			left, err = append(left, found...), errors.Join(err, failed)
		}
		if err != nil || len(left) > 0 {
			t.Errorf("left of %s: %v, %v", name, left, err)
		}
	}
}

// tokenOfAPod checks the node name in a pod's token. Admission policies distinguish nodes by this claim.
func tokenOfAPod(t *testing.T, c *kube.Cluster) {
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

// bridged installs the reference plugins on all nodes and waits until the nodes are ready.
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
