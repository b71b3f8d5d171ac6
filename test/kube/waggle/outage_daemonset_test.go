package waggle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// TestPrivilegedOutage_DaemonSetRestarts kills the agent's container while the API server is unreachable. Kubelet restarts it from local state, the agent
// starts from its snapshot on disk, and only new sandboxes are delayed.
func TestPrivilegedOutage_DaemonSetRestarts(t *testing.T) {
	t.Parallel()
	c, n := installed(t, kube.Options{ClusterCIDR: kube.DualStackCIDR}, "--set", "k8s-snapshot-interval=2s")
	for _, name := range []string{"a", "b", "crashing"} {
		if err := c.RunPod(t.Context(), kube.Pod{Name: name, Labels: map[string]string{"app": name}}); err != nil {
			t.Fatal(err)
		}
	}
	peers, err := c.PodIPs(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	// The agent writes the snapshot soon after its start. The interval to the next one is long if writing takes long.
	began, old := time.Now(), agentPID(t, n)
	pods, err := c.AgentPods(t.Context())
	if err != nil || len(pods) != 1 {
		t.Fatal(pods, err)
	}
	if _, err := c.Kubectl(t.Context(), "delete", "pod", "-n", "kube-system", strings.TrimPrefix(pods[0], "kube-system/"), "--wait=false"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "another agent to have written a copy with the pods", func() error {
		if now := agentPID(t, n); now == "" || now == old {
			return fmt.Errorf("the agent was process %s and is %q", old, now)
		}
		all, err := readRows[struct {
			Table string
			Copy  time.Time
		}](t, n, "sources")
		for _, row := range all {
			if row.Table == "k8s-pods" && row.Copy.Before(began) { // the time has a resolution of one second
				err = fmt.Errorf("the copy is of %s", row.Copy)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitWaggle(t.Context()); err != nil {
		t.Fatal(err)
	}
	containers := containersOf(t, n)
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	var talk errgroup.Group
	talking, hush := context.WithCancel(t.Context())
	defer hush()
	for _, peer := range peers {
		talk.Go(func() error { return pingUntil(talking, n, containers["a"], peer) })
	}

	before := agentPID(t, n)
	if before == "" {
		t.Fatal("there is no agent")
	}
	if _, err := n.Run(t.Context(), "kill", "-9", before); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "kubelet to start the agent again", func() error {
		if now := agentPID(t, n); now == "" || now == before {
			return errors.New("there is no new one")
		}
		_, err := n.Waggle(t.Context(), "status", "--brief")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitStatus(t.Context(), func(status string) bool { return strings.Contains(status, "from the copy on disk of ") }); err != nil {
		t.Errorf("the status does not say that it is a copy: %v", err)
	}
	newSandbox(t, c, n, "crashing", peers[0])
	knowsLabels(t, n, "crashing")
	runtimeReturns(t, c, n)
	hush()
	if err := talk.Wait(); err != nil {
		t.Error(err)
	}
	published(t, c, n, "a", "b", "crashing")
}

// agentPID returns the agent's process id on the node, or "" if the agent does not run.
func agentPID(t *testing.T, n *kube.Node) string {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline)" in "/usr/bin/waggle-agent --config-dir"*) echo ${p#/proc/};; esac; done 2>/dev/null`)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}
