package waggle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

const (
	otherGeneration = 7
	frozenTable     = "table endpoints"
)

// restartsUnnoticed kills the agent, deletes its pod, replaces it with another datapath generation and hangs it; then it restarts kubelet and containerd and,
// in the soak, restores the previous generation. Long-lived connections of pods must not be interrupted.
func restartsUnnoticed(t *testing.T, shared *kube.Cluster) {
	c, n := installedNode(t, shared, kube.NodeOptions{OwnDaemonSet: true})
	var other string
	var making errgroup.Group
	making.Go(func() (err error) {
		other, err = c.BuildImage(t.Context(), kube.Build{Generation: otherGeneration, Tags: "freeze"})
		return err
	})
	hush := converse(t, c, n)
	image := imageOf(t, c)
	if err := making.Wait(); err != nil {
		t.Fatal(err)
	}

	type step struct {
		name    string
		disturb func() error
		same    bool // the step must not restart the agent
	}
	steps := []step{
		{"the agent is killed", func() error { return kill(t, n) }, false},
		{"the agent's pod is deleted", func() error {
			_, err := c.Kubectl(t.Context(), "delete", "-n", "kube-system", "pod", "-l", "app.kubernetes.io/name="+c.DaemonSet(), "--wait=false")
			return err
		}, false},
		{"another generation", func() error { return update(t, c, other, "--state-dir", "/var/run/waggle") }, false},
		{"the agent hangs", func() error { return hang(t, c, n) }, false},
		{"kubelet restarts", n.RestartKubelet, true},
		{"containerd restarts", func() error { return errors.Join(n.StopContainerd(), n.StartContainerd(t.Context())) }, true},
	}
	if soak() {
		steps = append(steps, step{"the previous generation", func() error { return update(t, c, image) }, false})
	}
	for _, step := range steps {
		before, pid, began := endpointsOf(t, n), agentPID(t, n), time.Now()
		if err := step.disturb(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := c.WaitFor(t.Context(), "all to be well after "+step.name, func() error {
			if now := agentPID(t, n); now == "" || (now == pid) != step.same {
				return fmt.Errorf("the agent was process %s and is %q", pid, now)
			}
			return errors.Join(n.WaitAgentReady(t.Context()), passed(t, n))
		}); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitWaggle(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: all is well after %s", step.name, time.Since(began).Round(10*time.Millisecond))
		// A new pod shows that kubelet, the runtime and the agent work together again.
		known(t, c, n, runPod(t, c, "later", n))
		if err := errors.Join(c.DeletePod(t.Context(), "later"), c.WaitFor(t.Context(), "the endpoints to be the previous ones", func() error {
			return sameEndpoints(t, n, before)
		})); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
	}
	hush()
}

// kill sends SIGKILL to the agent, as the OOM killer does.
func kill(t *testing.T, n *kube.Node) error {
	t.Helper()
	_, err := n.Run(t.Context(), "kill", "-9", agentPID(t, n))
	return err
}

func imageOf(t *testing.T, c *kube.Cluster) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "get", "-n", "kube-system", "ds/"+c.DaemonSet(), "-o", `jsonpath={.spec.template.spec.containers[0].image}`)
	if err != nil || out == "" {
		t.Fatalf("the DaemonSet's image is %q, %v", out, err)
	}
	return out
}

// update changes the image of the DaemonSet and the flags of the agent. It shortens the interval of the liveness probe, so that a hung agent is restarted
// sooner than in a release, and lengthens the probe's timeout, so that only the answer 503 and not a lack of CPU time restarts the agent. These values stay
// until the end of the test, since each change is another rollout.
func update(t *testing.T, c *kube.Cluster, image string, flags ...string) error {
	t.Helper()
	args := `"` + strings.Join(append([]string{"--config-dir=/etc/waggle", "--procfs=/host/proc"}, flags...), `","`) + `"`
	_, err := c.Kubectl(t.Context(), "patch", "-n", "kube-system", "ds/"+c.DaemonSet(), "-p", fmt.Sprintf(`{"spec": {"template": {"spec": {
		"initContainers": [{"name": "setup", "image": %[1]q}],
		"containers": [{"name": "agent", "image": %[1]q, "args": [%[2]s], "livenessProbe": {"periodSeconds": 2, "failureThreshold": 2, "timeoutSeconds": 30}}]}}}}`, image, args))
	return err
}

// hang makes a running agent hold a write transaction on a table that every pod needs, until kubelet has restarted the agent.
func hang(t *testing.T, c *kube.Cluster, n *kube.Node) error {
	t.Helper()
	if err := n.WaitStatus(t.Context(), func(status string) bool {
		return strings.Contains(status, fmt.Sprintf("datapath generation %d", otherGeneration))
	}); err != nil {
		return fmt.Errorf("it is not the other agent: %w", err)
	}
	pid := agentPID(t, n)
	if err := n.WriteFile("/run/waggle/freeze", frozenTable, 0o600); err != nil {
		return err
	}
	err := c.WaitFor(t.Context(), "kubelet to end the agent that hangs", func() error {
		if now := agentPID(t, n); now == pid {
			return errors.New("it runs")
		}
		return nil
	})
	_, removed := n.Run(t.Context(), "rm", "/run/waggle/freeze")
	return errors.Join(err, removed)
}

// passed returns nil if the agent has exactly one self-test and it has passed.
func passed(t *testing.T, n *kube.Node) error {
	t.Helper()
	tests, err := readRows[selfTest](t, n, "self-tests")
	if err == nil && (len(tests) != 1 || tests[0].State != "passed") {
		err = fmt.Errorf("the self-test's row is %+v", tests)
	}
	return err
}

// endpoint holds the properties of an endpoint that a restart must not change.
type endpoint struct {
	ID                                  int
	ContainerID, HostIfName, K8sPodName string
	HostIfIndex                         int
	IPv4, IPv6, Quarantine, Doubt       string
}

// endpointsOf returns the endpoints of pods without the self-test's. It fails the test if it cannot read them.
func endpointsOf(t *testing.T, n *kube.Node) []endpoint {
	t.Helper()
	all, err := readEndpoints(t, n)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readEndpoints(t *testing.T, n *kube.Node) ([]endpoint, error) {
	all, err := readRows[endpoint](t, n, "endpoints")
	return slices.DeleteFunc(all, func(e endpoint) bool { return e.K8sPodName == "" }), err
}

func sameEndpoints(t *testing.T, n *kube.Node, before []endpoint) error {
	t.Helper()
	now, err := readEndpoints(t, n)
	if err == nil && (fmt.Sprint(now) != fmt.Sprint(before) || len(now) == 0) {
		err = fmt.Errorf("the endpoints were\n%+v\nand are\n%+v", before, now)
	}
	return err
}

// conversation is the command of a pod for a peer: one connection with twenty echoed lines a second, and ten pings a second. It ends when ping
// sleeps, and so has read all replies, or has ended by itself. The command runs outside the runtime's processes, because the runtime restarts as well.
const conversation = `
{ { i=0; until [ -e /hush ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo $i > /said-%[1]d; } | nc %[2]s 9000 > /heard-%[1]d; echo $? > /ended-%[1]d; } &
{ ping -i 0.1 -W 2 %[2]s > /pings-%[1]d & p=$!; until [ -e /hush ]; do sleep 0.1; done; sleep 0.2; while grep -qs '^State:.[^SZ]' /proc/$p/status; do sleep 0.1; done; kill -INT $p; wait $p; echo $? > /pinged-%[1]d; } &
`

// converse creates two pods that exchange traffic in both families until the caller calls hush, which requires that no answer is missing.
func converse(t *testing.T, c *kube.Cluster, n *kube.Node) (hush func()) {
	t.Helper()
	if err := errors.Join(c.CreatePod(t.Context(), kube.Pod{Name: "a", Node: n.Name}),
		c.RunPod(t.Context(), kube.Pod{Name: "b", Node: n.Name, Command: []string{"nc", "-ll", "-p", "9000", "-e", "cat"}}),
		c.WaitPodReady(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	peers, err := c.PodIPs(t.Context(), "b")
	if err != nil || len(peers) != 2 {
		t.Fatalf("pod b has the addresses %v, %v", peers, err)
	}
	container := containersOf(t, n)["a"]
	in := func(script string) (string, error) { return n.Run(t.Context(), inContainer(n, container, script)...) }
	for i, peer := range peers {
		if out, err := in("exec >/dev/null 2>&1 </dev/null; trap '' HUP" + fmt.Sprintf(conversation, i, peer)); err != nil {
			t.Fatal(err, out)
		}
		if err := c.WaitFor(t.Context(), "the first words of "+peer, func() error {
			_, err := in(fmt.Sprintf("[ -s /heard-%d ]", i))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		if _, err := in("touch /hush"); err != nil {
			t.Fatal(err)
		}
		for i, peer := range peers {
			if err := c.WaitFor(t.Context(), "the talk to end", func() error {
				_, err := in(fmt.Sprintf("[ -e /ended-%[1]d ] && [ -e /pinged-%[1]d ]", i))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			out, err := in(fmt.Sprintf(sumUp+` /pings-%[1]d; wc -l < /heard-%[1]d; seq $(cat /said-%[1]d) | cmp - /heard-%[1]d && echo every line came back`, i))
			if t.Logf("%s: %s", peer, out); err != nil || !hasReplies(out) || !strings.Contains(out, "every line came back") {
				t.Errorf("%s did not hear or answer all: %v\n%s", peer, err, out)
			}
		}
	}
}
