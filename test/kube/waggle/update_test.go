package waggle_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

type selfTest struct {
	State, Message string
	At             time.Time
}

// TestPrivilegedDaemonSet_FailedTestUpdateAndUninstall runs the lifecycle of an installation: a self-test that fails in one family, its repair, an update and
// the removal while pods send traffic, and the cleanup of the node and of the cluster.
func TestPrivilegedDaemonSet_FailedTestUpdateAndUninstall(t *testing.T) {
	t.Parallel()
	c := kube.Start(t, kube.Options{ClusterCIDR: kube.DualStackCIDR, NodeOptions: kube.NodeOptions{Taints: []string{notReadyTaint + "=true:NoSchedule"}}})
	n := c.Nodes[0]
	awaitTablesOfKubelet(t, c, n)
	fresh, object := network(t, n), written(t, c, n)
	repliesByIPv6(t, n, false)
	if err := c.InstallWaggle(t.Context(), "--set", "enable-ipv6=true"); err != nil {
		t.Fatal(err)
	}
	newReplicas(t, c)
	untoldWhileTestFails(t, c, n)
	repliesByIPv6(t, n, true)
	if err := c.WaitFor(t.Context(), "the taint to go and the network to be available", func() error { return available(t.Context(), c, n) }); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"a", "b"} {
		if err := c.RunPod(t.Context(), kube.Pod{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	peers, err := c.PodIPs(t.Context(), "b")
	if err != nil || len(peers) != 2 {
		t.Fatalf("pod b has the addresses %v, %v", peers, err)
	}
	hush := talk(t, n, "a", peers...)
	updated(t, c, n)
	uninstalled(t, c, n)
	hush()
	cleaned(t, c, n, fresh)
	forgotten(t, c, n, object)
}

// repliesByIPv6 enables or disables replies to IPv6 pings for all addresses of the node, including the router's.
func repliesByIPv6(t *testing.T, n *kube.Node, yes bool) {
	t.Helper()
	value := map[bool]string{true: "0", false: "1"}[yes]
	if _, err := n.Run(t.Context(), "sh", "-c", "echo "+value+" > /proc/sys/net/ipv6/icmp/echo_ignore_all"); err != nil {
		t.Fatal(err)
	}
}

// untoldWhileTestFails requires that the agent does not report a partly working network to the cluster, although runtimes may use the network.
func untoldWhileTestFails(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "the self-test to fail", func() error {
		tests, err := readRows[selfTest](t, n, "self-tests")
		if err == nil && (len(tests) != 1 || tests[0].State != "failed" || !strings.Contains(tests[0].Message, "ping") || !strings.Contains(tests[0].Message, "fd00:")) {
			err = fmt.Errorf("its row is %+v", tests)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var node struct {
		Spec   struct{ Taints []struct{ Key string } }
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := c.GetObject(t.Context(), nodePath+n.Name, &node); err != nil {
		t.Fatal(err)
	}
	tainted := false
	for _, taint := range node.Spec.Taints {
		tainted = tainted || taint.Key == notReadyTaint
	}
	if !tainted {
		t.Errorf("the self-test failed and the taint is gone: %+v", node.Spec.Taints)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "NetworkUnavailable" && condition.Status == "False" {
			t.Error("the self-test failed and the network is called available")
		}
	}
	// The rows of the taint and of the condition NetworkUnavailable have a readable reason. The row of paths does not depend on the self-test.
	if err := c.WaitFor(t.Context(), "the reasons why nothing is written to the Node", func() error {
		updates, err := readRows[struct{ Name, State, Message string }](t, n, "node-updates")
		if err == nil && len(updates) < 3 {
			err = fmt.Errorf("the rows about updates of the Node are %+v", updates)
		}
		for _, u := range updates {
			if u.Name != "paths" && (u.State != "waiting" || !strings.Contains(u.Message, "self-test")) {
				err = errors.Join(err, fmt.Errorf("the row of %s says %s: %s", u.Name, u.State, u.Message))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// talk pings peers from a pod, ten times a second, until the caller calls the returned function, which requires that no answer is missing.
func talk(t *testing.T, n *kube.Node, pod string, peers ...string) (hush func()) {
	t.Helper()
	// When ping sleeps, it has read all replies. A ping that has ended by itself is not awaited.
	const script = `ping -i 0.1 -W 2 %s > /talk-%d & p=$!; while [ ! -e /hush ]; do sleep 0.1; done; while grep -qs '^State:.[^SZ]' /proc/$p/status; do sleep 0.1; done; kill -INT $p; wait $p; cat /talk-%d | ` + sumUp
	container := containersOf(t, n)[pod]
	output, group := make([]string, len(peers)), &errgroup.Group{}
	for i, peer := range peers {
		group.Go(func() (err error) {
			output[i], err = n.Run(t.Context(), inContainer(n, container, fmt.Sprintf(script, peer, i, i))...)
			return err
		})
	}
	return func() {
		t.Helper()
		if _, err := n.Run(t.Context(), inContainer(n, container, "touch /hush")...); err != nil {
			t.Error(err)
			return
		}
		if err := group.Wait(); err != nil {
			t.Errorf("the pods did not keep talking: %v", err)
		}
		for i, peer := range peers {
			if t.Logf("to %s: %s", peer, output[i]); !hasReplies(output[i]) {
				t.Errorf("the pods did not keep talking: %s: %s", peer, output[i])
			}
		}
	}
}

// sumUp reduces ping's output to the first missing answer and ping's own summary.
const sumUp = `awk '/seq=/ {sub(".*seq=", ""); if ($1 != n++ && !lost) {lost = 1; print "no answer to " n - 1}} /transmitted/'`

var sum = regexp.MustCompile(`(\d+) packets transmitted, (\d+) packets received`)

// hasReplies reports whether every ping was answered, except for one that was in flight when ping was stopped.
func hasReplies(summed string) bool {
	counts := sum.FindStringSubmatch(summed)
	if counts == nil || strings.Contains(summed, "no answer to") {
		return false
	}
	sent, _ := strconv.Atoi(counts[1])
	received, _ := strconv.Atoi(counts[2])
	return received > 0 && sent-received <= 1
}

// updated applies other options, which replaces the agent's pod, and waits for a new self-test and the previous content of the Node.
func updated(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	before, tested := transition(t, c, n), rows[selfTest](t, n, "self-tests")[0].At
	old, err := c.AgentPods(t.Context())
	if err != nil || len(old) != 1 {
		t.Fatal(old, err)
	}
	if err := c.InstallWaggle(t.Context(), "--set", "enable-ipv6=true", "--set", "annotate-k8s-node=true"); err != nil {
		t.Fatal(err)
	}
	newReplicas(t, c)
	if err := c.WaitFor(t.Context(), "another agent with a passed self-test of its own", func() error {
		now, err := c.AgentPods(t.Context())
		if err == nil && (len(now) != 1 || now[0] == old[0]) {
			err = fmt.Errorf("the pods are %v", now)
		}
		if err != nil {
			return err
		}
		tests, err := readRows[selfTest](t, n, "self-tests")
		if err == nil && (len(tests) != 1 || tests[0].State != "passed" || !tests[0].At.After(tested)) {
			err = fmt.Errorf("the row is %+v", tests)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitWaggle(t.Context()); err != nil {
		t.Error(err)
	}
	if err := available(t.Context(), c, n); err != nil {
		t.Error(err)
	}
	if after := transition(t, c, n); after != before {
		t.Errorf("the condition changed at %s, had been since %s", after, before)
	}
}

const configDigest = "waggle.io/config"

// newReplicas waits for two ready replicas of the cluster role with the options of the Deployment, which the only node of the cluster runs.
func newReplicas(t *testing.T, c *kube.Cluster) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "two replicas of the cluster role with the latest options", func() error { return replicasAreNew(t, c) }); err != nil {
		t.Fatal(err)
	}
}

// replicasAreNew returns nil if two replicas of the cluster role from the current Deployment are ready.
func replicasAreNew(t *testing.T, c *kube.Cluster) error {
	var deployment struct {
		Spec struct {
			Template struct {
				Metadata struct{ Annotations map[string]string }
			}
		}
	}
	if err := c.GetObject(t.Context(), "/apis/apps/v1/namespaces/kube-system/deployments/waggle-cluster", &deployment); err != nil {
		return err
	}
	var pods struct {
		Items []struct {
			Metadata struct{ Annotations map[string]string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.GetObject(t.Context(), "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name=waggle-cluster", &pods); err != nil {
		return err
	}
	want, ready := deployment.Spec.Template.Metadata.Annotations[configDigest], 0
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && pod.Metadata.Annotations[configDigest] == want {
				ready++
			}
		}
	}
	if ready != 2 {
		return fmt.Errorf("%d ready replicas have the options of the Deployment", ready)
	}
	return nil
}

// transition returns the time of the condition's last transition.
func transition(t *testing.T, c *kube.Cluster, n *kube.Node) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", `jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].lastTransitionTime}`)
	if err != nil || out == "" {
		t.Fatalf("the condition has changed at %q, %v", out, err)
	}
	return out
}

// uninstalled uninstalls Waggle as the guide describes, and requires exactly the leftovers that the guide lists.
func uninstalled(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	manifests, err := n.Waggle(t.Context(), "install", "--only", "cluster,agent,config,addresses,admission,rbac", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.KubectlInput(t.Context(), manifests, "delete", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the agent's pod to go", func() error {
		out, err := c.Kubectl(t.Context(), "get", "pods", "-n", "kube-system", "-o", "name")
		if err == nil && out != "" {
			err = errors.New("there are " + out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, object := range objectsOf(t, manifests) {
		if out, err := c.Kubectl(t.Context(), "get", object[0], object[1], "-n", "kube-system", "--ignore-not-found", "-o", "name"); err != nil || out != "" {
			t.Errorf("%s is left: %v", out, err)
		}
	}
	if _, err := n.Run(t.Context(), "ls", "-d", "/opt/cni/bin/waggle-cni", "/etc/cni/net.d/05-waggle.conflist", "/run/waggle", "/var/lib/waggle",
		"/sys/fs/bpf/waggle", "/sys/class/net/waggle_host", "/sys/class/net/waggle_hold"); err != nil {
		t.Errorf("the guide says that this stays, and that a person removes it: %v", err)
	}
	if err := pingOnce(t.Context(), n, containersOf(t, n)["a"], n.IPv4); err != nil {
		t.Errorf("without the agent: %v", err)
	}
}

// awaitTablesOfKubelet waits for the tables of netfilter that kubelet creates one after the other, the last ones some time after the node is registered.
func awaitTablesOfKubelet(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "the tables of kubelet", func() error {
		out, err := n.Run(t.Context(), "nft", "list", "tables")
		for _, family := range []string{"ip", "ip6"} {
			for _, name := range []string{"mangle", "nat", "filter"} {
				if table := "table " + family + " " + name; err == nil && !slices.Contains(strings.Split(out, "\n"), table) {
					err = fmt.Errorf("%s is missing:\n%s", table, out)
				}
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// network lists links, routes, rules, settings and files of a node.
func network(t *testing.T, n *kube.Node) string {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c", `ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/\1/'; ip route show table all | grep -v 'fe80\|ff00'; `+
		`ip -6 route show table all | grep -v 'fe80\|ff00'; ip rule; ip -6 rule; nft list tables; `+
		`ls -d /var/run/waggle /var/lib/waggle 2>/dev/null; ls /sys/fs/bpf /opt/cni/bin /etc/cni/net.d; `+
		`sysctl net.ipv4.ip_forward net.ipv4.conf.all net.ipv4.conf.default.forwarding net.ipv6.conf.all net.ipv6.conf.default.forwarding 2>/dev/null; true`)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// cleaned removes Waggle's resources from the node as the guide describes, and requires the node's initial state. Running pods keep these resources until
// their deletion, which works without the agent.
func cleaned(t *testing.T, c *kube.Cluster, n *kube.Node, fresh string) {
	t.Helper()
	if err := c.ApplyWaggle(t.Context(), "--only", "cleanup"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the cleanup to say what it waits for", func() error {
		out, err := c.Kubectl(t.Context(), "logs", "-n", "kube-system", "ds/waggle-cleanup", "-c", "cleanup")
		if err == nil && !strings.Contains(out, "2 pods are attached") {
			err = errors.New("it says " + out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := pingOnce(t.Context(), n, containersOf(t, n)["a"], n.IPv4); err != nil {
		t.Errorf("beside a cleanup that waits: %v", err)
	}
	for _, name := range []string{"a", "b"} {
		if err := c.DeletePod(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Kubectl(t.Context(), "rollout", "status", "-n", "kube-system", "ds/waggle-cleanup", "--timeout=5m"); err != nil {
		out, _ := c.Kubectl(t.Context(), "logs", "-n", "kube-system", "ds/waggle-cleanup", "-c", "cleanup")
		t.Fatal(err, out)
	}
	if err := c.WaitFor(t.Context(), "the node to be as it was", func() error {
		if now := network(t, n); now != fresh {
			return fmt.Errorf("it was\n%s\nand is\n%s", fresh, now)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := c.Kubectl(t.Context(), "delete", "-n", "kube-system", "ds/waggle-cleanup", "--timeout=3m"); err != nil {
		t.Error(err)
	}
}

// written returns the current content of the Node fields that an agent may write.
func written(t *testing.T, c *kube.Cluster, n *kube.Node) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "get", "node", n.Name, "-o", `jsonpath={.metadata.annotations} {.status.conditions[?(@.type=="NetworkUnavailable")].status}`)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// forgotten removes Waggle's objects from the cluster as the guide describes.
func forgotten(t *testing.T, c *kube.Cluster, n *kube.Node, object string) {
	t.Helper()
	definitions, err := n.Waggle(t.Context(), "install", "--only", "crds")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.KubectlInput(t.Context(), definitions, "delete", "-f", "-", "--timeout=3m"); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{
		{"delete", "-n", "kube-system", "lease", "waggle-cluster", "--ignore-not-found"},
		{"annotate", "nodes", "--all", "waggle.io/wrote-", "network.cilium.io/ipv4-pod-cidr-", "network.cilium.io/ipv6-pod-cidr-",
			"network.cilium.io/ipv4-cilium-host-", "network.cilium.io/ipv6-cilium-host-", "network.cilium.io/ipv4-health-ip-",
			"network.cilium.io/ipv6-health-ip-"},
		{"patch", "node", n.Name, "--subresource=status", "-p", `{"status":{"conditions":[{"type":"NetworkUnavailable","$patch":"delete"}]}}`},
	} {
		if _, err := c.Kubectl(t.Context(), args...); err != nil {
			t.Error(err)
		}
	}
	if now := written(t, c, n); now != object {
		t.Errorf("the Node was\n%s\nand is\n%s", object, now)
	}
	if out, err := c.Kubectl(t.Context(), "api-resources", "--api-group=cilium.io", "-o", "name"); err != nil || out != "" {
		t.Errorf("kinds that are left: %q, %v", out, err)
	}
}

// objectsOf returns kind and name of each manifest.
func objectsOf(t *testing.T, manifests string) (all [][2]string) {
	t.Helper()
	var list struct {
		Items []struct {
			Kind     string
			Metadata struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(manifests), &list); err != nil || len(list.Items) < 10 {
		t.Fatalf("%d manifests, %v", len(list.Items), err)
	}
	for _, o := range list.Items {
		all = append(all, [2]string{o.Kind, o.Metadata.Name})
	}
	return all
}
