package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/selftestreport"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/test/nodekit"
)

const healthAddress = "127.0.0.1:9879"

// probe requests the health port as kubelet does, with a timeout that suffices on a busy machine.
func probe(node *nodekit.Node, path string) (code int, line string, err error) {
	return probeWithin(30*time.Second, node, path)
}

// probeWithin is [probe] with a timeout for the whole reply.
func probeWithin(timeout time.Duration, node *nodekit.Node, path string) (code int, line string, err error) {
	err = node.Do(func() error {
		deadline := time.Now().Add(timeout)
		conn, err := net.DialTimeout("tcp", healthAddress, timeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
		request, err := http.NewRequest(http.MethodGet, "http://"+healthAddress+path, nil)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		code, line = response.StatusCode, strings.TrimSpace(string(body))
		return err
	})
	return code, line, err
}

// stir gives every loop work, as far as a node without Kubernetes can: a pod and an external device are added and removed; the Node, another Node, the labels
// of a Pod, a service and the file of the ip-masq-agent change; sockets are connected; and the state that the loop repairs is damaged. It does not wait for
// stalled calls.
func stir(t *testing.T, node *repairNode, ipMasq string, round int, loop string) (settle func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	pod, err := node.NewPod(fmt.Sprintf("stir-%d", round))
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	calls.Go(func() { _ = errors.Join(pod.Attach(ctx), pod.Detach(ctx)) })
	calls.Go(func() { _, _ = node.Waggle(ctx, "shell", "--", "liveness") })
	calls.Go(func() { _, _ = node.Waggle(ctx, "monitor") })
	write := func(name, content string) error {
		return os.WriteFile(filepath.Join(node.ManifestsDir(), name), []byte(content), 0o644)
	}
	manifest, err := os.ReadFile(filepath.Join(node.ManifestsDir(), "node.yaml"))
	if err := errors.Join(err,
		node.Do(func() error {
			_, err := addDevice(stirred, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(round + 1)}), 32))
			return err
		}),
		stirService(node, round),
		os.WriteFile(ipMasq, []byte(fmt.Sprintf("nonMasqueradeCIDRs: [10.99.%d.0/24]\n", round)), 0o644),
		write("node.yaml", fmt.Sprintf("%s  - {type: ExternalIP, address: 203.0.113.%d}\n", manifest, round+1)),
		write("other.yaml", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: other\nspec:\n  podCIDRs: [10.244.9.0/24, \"fd00:10:244:9::/64\"]\n"+
			"status:\n  addresses:\n  - {type: InternalIP, address: 192.0.2.%d}\n", 100+round)),
		write("pod.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: default\n  labels: {round: \"%d\"}\n"+
			"spec:\n  nodeName: node-1\n", round)),
		selftestreport.Write(node.StateDir(), selftestreport.Report{At: time.Unix(int64(round), 0)}),
		node.damage(loop)); err != nil {
		t.Fatal(err)
	}
	return func() {
		cancel()
		calls.Wait()
		deleted := node.Do(func() error { return linkNamed(stirred, netlink.LinkDel) })
		if err := errors.Join(deleted, pod.Detach(t.Context()), pod.Close()); err != nil {
			t.Error(err)
		}
	}
}

const stirred = "stirred"

// stirService writes a service whose backends and health check port change in each round.
func stirService(node *repairNode, round int) error {
	text := fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {%s, type: LoadBalancer, "+
		"externalTrafficPolicy: Local, healthCheckNodePort: %d}, status: {loadBalancer: {ingress: [{ip: 203.0.113.200}]}}}\n", webSpec, 31000+round)
	for i, family := range []string{"IPv4", "IPv6"} {
		text += fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: web-%d, "+
			"labels: {kubernetes.io/service-name: web}}, addressType: %s, ports: %s, endpoints: [{addresses: [%q], nodeName: node-1}]}\n",
			i, family, webPorts, []*nodekit.Pod{node.a, node.b}[round%2].Addr(i == 1))
	}
	return node.WriteManifest("web.yaml", text)
}

// repairedBy maps loops that only drift gives work to the announced damage that they repair. Pods keep their traffic meanwhile.
var repairedBy = map[string]string{
	"loader/follow-filters":                  "waggle_hold loses its clsact",
	"loader/follow-pins":                     "the pin of a tcx link is removed",
	"loader/follow-rule":                     "all of nftables is flushed",
	"maps/follow-pins":                       "the pin of a map is removed",
	"drift/watch-repairs":                    "the pin of a map is removed",
	"routes/reconcile-desired-routes":        "the IPv6 route is deleted",
	"base-devices/reconcile-desired-devices": "waggle_net gets another MTU",
	"overlay/reconcile-overlays":             "waggle_vxlan is deleted",
	"sysctl/reconcile-sysctls":               "a pod's link filters sources",
	"sysctl/follow-sysctls":                  "a pod's link filters sources",
}

// noTunnel is not in announced: the agent creates the device again because it is missing, whether it existed before or not, and counts no repair.
var noTunnel = sabotage{"waggle_vxlan is deleted", driftrepairs.Link, onLink(podlink.OverlayDevice, netlink.LinkDel)}

// damage causes the damage that the loop repairs, if there is any.
func (n *repairNode) damage(loop string) error {
	for suffix, name := range repairedBy {
		if !strings.HasSuffix(loop, suffix) {
			continue
		}
		all := append(slices.Clone(announced), noTunnel)
		i := slices.IndexFunc(all, func(s sabotage) bool { return s.name == name })
		return n.Do(func() error { return all[i].do(n) })
	}
	return nil
}

// TestPrivilegedStall_EachLoop_IsReported freezes one loop after the other, and write transactions, of a running agent: each makes liveness red while pods keep
// their traffic, and green again when it continues. pkg/watchdog tests when that has to happen.
func TestPrivilegedStall_EachLoop_IsReported(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ip-masq-agent")
	started, freeze := frozen(t, "--enable-ip-masq-agent", "--ip-masq-agent-config-path="+file)
	a, b := addPod(t, started, "a"), addPod(t, started, "b")
	node := &repairNode{Node: started, a: a, b: b, podLink: endsOf(t, a).host}
	green := func() {
		t.Helper()
		eventually(t, func() error {
			if code, line, err := probe(node.Node, "/healthz"); err != nil || code != http.StatusOK {
				return fmt.Errorf("status %d %s: %v", code, line, err)
			}
			return nil
		})
	}
	green()
	for round, name := range frozenInTurn(t, node.Node) {
		freeze(name)
		settle := stir(t, node, file, round, name)
		line := ""
		// Some loops run only every 25 s.
		for deadline := time.Now().Add(awaitFor); !strings.Contains(line, name) && time.Now().Before(deadline); {
			time.Sleep(50 * time.Millisecond)
			code, body, err := probe(node.Node, "/healthz")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if code == http.StatusServiceUnavailable {
				line = body
			}
		}
		if !strings.Contains(line, name) {
			t.Errorf("%s was frozen for %v, and liveness said last: %q", name, awaitFor, line)
		}
		if err := errors.Join(nodekit.Ping(a, b.Addr(false), 56), nodekit.Ping(a, b.Addr(true), 56), nodekit.TCP(a, b, b.Addr(false), 1000)); err != nil {
			t.Errorf("while %s was frozen: %v", name, err)
		}
		freeze()
		green()
		settle()
	}
	if _, err := os.Stat(filepath.Join(node.StateDir(), "stall.txt")); err != nil {
		t.Errorf("no stacks were left: %v", err)
	}
}

// frozenInTurn returns some loops of each kind, or in a soak all loops that a node without Kubernetes can run.
func frozenInTurn(t *testing.T, node *nodekit.Node) (names []string) {
	t.Helper()
	few := []string{"table endpoints", frozenLoop, "loop devices/mirror-kernel", "loop loader/reconcile-attachments", "loop k8s-tables/read-manifests"}
	if soak(t) == 1 {
		return few
	}
	text, err := node.Waggle(t.Context(), "shell", "--", "liveness")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "table health", "table bpf-links")
	for line := range strings.Lines(text) {
		if name := "loop " + strings.TrimSpace(line); strings.Contains(name, "/") && !slices.ContainsFunc(unstirred, func(u string) bool { return strings.Contains(name, u) }) {
			names = append(names, name)
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %d loops: %s", len(names), text)
	}
	return append(few, names...)
}

// unstirred lists the loops that get no work on a node without Kubernetes.
var unstirred = []string{
	"api-server/serve", "healthz/serve", "metrics/serve", "node-health/serve", // net/http waits for connections; each request to the API is watched by itself
	"liveness/evaluate", "liveness/write-down", "liveness/freeze-tables", // detection of stalls, and the freeze of the test
	"health/record-hooks",                // all start hooks have run
	"desired-routes/retry-prune",         // until a prune fails
	"endpoint-manager/remove-left-files", // until a file cannot be removed
}

// requireGreen requests liveness every 200 ms for a while. Each reply must report no stall.
func requireGreen(t *testing.T, node *nodekit.Node, while time.Duration) {
	t.Helper()
	const every = 200 * time.Millisecond
	for i := range int(while / every) {
		if code, line, err := probe(node, "/healthz"); err != nil || code != http.StatusOK {
			t.Fatalf("answer %d: status %d %s: %v", i+1, code, line, err)
		}
		time.Sleep(every)
	}
}

// TestPrivilegedStall_StoppedProcess_NotReported stops the process for longer than each limit, like a paused machine. The agent has the limits of the release.
func TestPrivilegedStall_StoppedProcess_NotReported(t *testing.T) {
	t.Parallel()
	if soak(t) == 1 {
		t.Skip("waits longer than each limit of the release: only make soak does; TestMonitor_StoppedProcess_IsNoStall has the exact form")
	}
	node := startNode(t, nodekit.Options{})
	addPod(t, node, "a")
	for range 3 {
		pid := node.AgentPID()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(70 * time.Second) // the longest limit, of a request to the API, is 55 s
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		requireGreen(t, node, 15*time.Second)
	}
}

// TestPrivilegedStall_IdleAgent_NotReported leaves an agent idle with two pods. No stall is reported, because each waiting loop has reported that it waits. The agent has
// the limits of the release; the soak waits for longer than the longest limit.
func TestPrivilegedStall_IdleAgent_NotReported(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	addPod(t, node, "a")
	addPod(t, node, "b")
	while := 3 * time.Second
	if soak(t) > 1 {
		while = 6 * time.Minute
	}
	requireGreen(t, node, while)
}

// TestPrivilegedStall_HangingDisk_IsReported stalls the disk to which the stacks are written. The verdict and its line are reported nevertheless; after the stall of
// the table ends, only the stall of the disk is reported. A pipe without a reader replaces the disk.
func TestPrivilegedStall_HangingDisk_IsReported(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t)
	pipe := filepath.Join(node.StateDir(), "stall.txt")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	red := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if code, line, err := probe(node, "/livez"); err != nil || code != http.StatusServiceUnavailable || !strings.Contains(line, want) {
				return fmt.Errorf("status %d %s: %v, want %q", code, line, err, want)
			}
			return nil
		})
	}
	freeze("table endpoints")
	red("table endpoints cannot be written")
	red("; and ") // the loop that writes the stacks is stalled as well
	freeze()
	red("loop liveness/write-down hangs")
	text, err := os.ReadFile(pipe)
	if err != nil || !strings.Contains(string(text), "table endpoints cannot be written") || !strings.Contains(string(text), "goroutine ") {
		t.Errorf("written at last: %v: %.300s", err, text)
	}
	eventually(t, func() error {
		if code, line, err := probe(node, "/livez"); err != nil || code != http.StatusOK {
			return fmt.Errorf("status %d %s: %v", code, line, err)
		}
		return nil
	})
}
