package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

const healthAddress = "127.0.0.1:9879"

// probe asks the health port as kubelet does.
func probe(node *nodekit.Node, path string) (code int, line string, err error) {
	err = node.Do(func() error {
		conn, err := net.DialTimeout("tcp", healthAddress, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
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

// stir gives every loop something to do, as far as a node without Kubernetes can: a pod comes and goes, a link comes and
// goes, the Node object changes. What hangs is not waited for.
func stir(t *testing.T, node *nodekit.Node, round int) (settle func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	pod, err := node.NewPod(fmt.Sprintf("stir-%d", round))
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	calls.Go(func() { _ = errors.Join(pod.Attach(ctx), pod.Detach(ctx)) })
	if err := node.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "stirred"}, PeerName: "stirring"}
		return errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link), netlink.LinkDel(link))
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(node.ManifestsDir(), "node.yaml")
	manifest, err := os.ReadFile(path)
	if err == nil {
		manifest = append(manifest, fmt.Sprintf("  - {type: ExternalIP, address: 203.0.113.%d}\n", round+1)...)
		err = os.WriteFile(path, manifest, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { cancel(); calls.Wait(); _ = errors.Join(pod.Detach(t.Context()), pod.Close()) }
}

// TestPrivilegedWedge_EachLoopInTurn freezes one loop after the other, and write transactions, of a running agent: each makes
// liveness red within a minute while pods talk on, and green again when it goes on.
func TestPrivilegedWedge_EachLoopInTurn(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	green := func() {
		t.Helper()
		eventually(t, func() error {
			if code, line, err := probe(node, "/healthz"); err != nil || code != http.StatusOK {
				return fmt.Errorf("status %d %s: %v", code, line, err)
			}
			return nil
		})
	}
	green()
	for round, name := range frozenInTurn(t, node) {
		freeze(name)
		settle := stir(t, node, round)
		began, line := time.Now(), ""
		for !strings.Contains(line, name) && time.Since(began) < time.Minute {
			time.Sleep(50 * time.Millisecond)
			code, said, err := probe(node, "/healthz")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if code == http.StatusServiceUnavailable {
				line = said
			}
		}
		if !strings.Contains(line, name) {
			t.Errorf("%s was frozen for a minute, and liveness said last: %q", name, line)
		}
		if err := errors.Join(nodekit.Ping(a, b.Addr(false), 56), nodekit.Ping(a, b.Addr(true), 56), nodekit.TCP(a, b, b.Addr(false), 1000)); err != nil {
			t.Errorf("while %s was frozen: %v", name, err)
		}
		t.Logf("%s: red after %s", name, time.Since(began).Round(time.Millisecond))
		freeze()
		green()
		settle()
	}
	if _, err := os.Stat(filepath.Join(node.StateDir(), "wedge.txt")); err != nil {
		t.Errorf("no stacks were left: %v", err)
	}
}

// frozenInTurn are a few loops of each kind, or with soak all that a node without Kubernetes can be made to run.
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

// unstirred are loops that have nothing to do however a node without Kubernetes is stirred: servers, whose requests are
// watched one by one, timers of minutes, what waits for a failure or for drift, and the judge himself.
var unstirred = []string{"/serve", "/judge", "/write-down", "/freeze-tables", "/record-hooks", "/retry-prune", "/watch-report", "/watch-repairs",
	"/write-cni-conf", "/load-programs", "/reconcile-desired-devices", "/reconcile-sysctls",
	"/follow-filters", "/follow-pins", "/follow-pod-labels", "/follow-ranges", "/follow-rule", "/reconcile-desired-routes"}

// TestPrivilegedWedge_AStoppedProcessIsNone: SIGSTOP for longer than every limit, then SIGCONT.
func TestPrivilegedWedge_AStoppedProcessIsNone(t *testing.T) {
	t.Parallel()
	node, _ := frozen(t) // for its short limits; nothing is frozen
	addPod(t, node, "a")
	for range 3 {
		pid := node.AgentPID()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // longer than a busy loop may take, and longer than a timer may be late
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			if code, line, err := probe(node, "/livez"); err != nil || code != http.StatusOK {
				t.Errorf("after SIGCONT: %d %s %v", code, line, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// TestPrivilegedWedge_IdleIsNone leaves an agent with pods alone for more than one round of its timers, which with a tenth of
// the limits is as if it were ten times as long: every loop that waits has said so.
func TestPrivilegedWedge_IdleIsNone(t *testing.T) {
	t.Parallel()
	node, _ := frozen(t)
	addPod(t, node, "a")
	addPod(t, node, "b")
	for began := time.Now(); time.Since(began) < 35*time.Second; time.Sleep(200 * time.Millisecond) {
		if code, line, err := probe(node, "/healthz"); err != nil || code != http.StatusOK {
			t.Fatalf("after %s: %d %s %v", time.Since(began), code, line, err)
		}
	}
}
