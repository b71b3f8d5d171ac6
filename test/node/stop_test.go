package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/test/nodekit"
)

// exitCode sends SIGTERM, waits for the end of the agent and returns its exit code.
func exitCode(t *testing.T, node *nodekit.Node) int {
	t.Helper()
	err := node.EndAgent(t.Context(), syscall.SIGTERM)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// TestPrivilegedStop_UnderParallelAddsAndDels ends the agent while 25 pods are attached and 25 are detached. Each call succeeds or returns an error with the
// remedy, and after the runtime has repeated failed calls no state remains.
func TestPrivilegedStop_UnderParallelAddsAndDels(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := lasting(t, node)
	const count = 25
	for _, pause := range oneOf(t, 5*time.Millisecond, 100*time.Millisecond, 400*time.Millisecond) {
		var coming, going []*nodekit.Pod
		for i := range count {
			pod, err := node.NewPod(fmt.Sprintf("coming-%d", i))
			if err != nil {
				t.Fatal(err)
			}
			coming, going = append(coming, pod), append(going, addPod(t, node, fmt.Sprintf("going-%d", i)))
		}
		var calls sync.WaitGroup
		errs := make([]error, 2*count)
		for i := range count {
			calls.Go(func() { errs[i] = coming[i].Attach(t.Context()) })
			calls.Go(func() { errs[count+i] = going[i].Detach(t.Context()) })
		}
		time.Sleep(pause)
		if err := node.StopAgent(t.Context()); err != nil {
			t.Errorf("%s after the calls began: %v", pause, err)
		}
		calls.Wait()
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		failed := 0
		for i, err := range errs {
			if err == nil {
				continue
			}
			failed++
			var cni *types.Error
			if !errors.As(err, &cni) || cni.Msg == "" || strings.Contains(cni.Msg+cni.Details, "EOF") && !strings.Contains(cni.Details, "agent") {
				t.Errorf("not a clear error: %v", err)
			}
			if i >= count {
				if err := going[i-count].Detach(t.Context()); err != nil {
					t.Errorf("DEL again: %v", err)
				}
			}
		}
		t.Logf("stopped %s after the calls began: %d of %d calls failed", pause, failed, 2*count)
		for i, pod := range coming {
			if errs[i] == nil {
				if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56)); err != nil {
					t.Errorf("a pod whose ADD succeeded: %v", err)
				}
			}
			if err := errors.Join(pod.Detach(t.Context()), pod.Close()); err != nil { // after a failed ADD too, as runtimes do
				t.Error(err)
			}
		}
		eventuallyLasting(t, node, before)
	}
}

// TestPrivilegedStop_WhileStarting ends the agent at moments of its start; the next one starts normally.
func TestPrivilegedStop_WhileStarting(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "lasting")
	before, logged := lasting(t, node), 0
	for i := range 8 {
		err := node.StopAgent(t.Context())
		// Only a process that does not handle signals yet ends by the signal.
		if started := strings.Contains(node.AgentLog()[logged:], "Starting waggle-agent"); err != nil && (started || !killed(err)) {
			t.Errorf("try %d: %v", i, err)
		}
		logged = len(node.AgentLog())
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
	}
	waitReady(t, node)
	if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56)); err != nil {
		t.Error(err)
	}
	eventuallyLasting(t, node, before)
}

// killed reports whether a process ended by a signal.
func killed(err error) bool {
	exit := (*exec.ExitError)(nil)
	return errors.As(err, &exit) && !exit.Exited()
}

// frozen returns a node whose agent's loops can be stalled. The agent's limits are a tenth of the release's, on the same code path. It gets additional flags.
func frozen(t *testing.T, args ...string) (node *nodekit.Node, freeze func(names ...string)) {
	t.Helper()
	node = newNode(t, nodekit.Options{AgentArgs: args})
	needBuilds(t)
	agent, err := builds.Agent(nodekit.Build{Tags: "freeze,shortlimits"})
	if err != nil {
		t.Fatal(err)
	}
	node.UseAgent(agent)
	freeze = func(names ...string) {
		if err := os.WriteFile(filepath.Join(node.StateDir(), "freeze"), []byte(strings.Join(names, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	return node, freeze
}

const frozenLoop = "loop endpoint-maps/fill-endpoint-maps"

// hang lets an ADD wait for a stalled loop. done returns the error of the ADD and removes the pod.
func hang(t *testing.T, node *nodekit.Node, freeze func(...string)) (done func() error) {
	t.Helper()
	freeze(frozenLoop)
	pod, err := node.NewPod("waits")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	var call sync.WaitGroup
	var answer error
	call.Go(func() { answer = pod.Attach(ctx) })
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "endpoint", "list", "-o", "json")
		if err == nil && !strings.Contains(text, pod.ContainerID) {
			err = errors.New("the endpoint is not there yet")
		}
		return err
	})
	return func() error {
		cancel()
		call.Wait()
		_ = pod.Detach(t.Context())
		_ = pod.Close()
		return answer
	}
}

// TestPrivilegedStop_HangingJob_WritesStacks ends an agent with a job that does not return. The process still ends and reports the failure with its exit code. It
// writes the stacks to a file, and the next run reports them in its log.
func TestPrivilegedStop_HangingJob_WritesStacks(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t, "--stop-timeout=30s") // 10 s from the record of the stacks to the end, for a busy machine
	done := hang(t, node, freeze)
	err := node.StopAgent(t.Context())
	for _, want := range []string{"exit status 1", "Stopping takes long", "Stop hook failed", "fill-endpoint-maps"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the end does not say %q: %v", want, err)
		}
	}
	freeze()
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	if err := done(); err == nil || !strings.Contains(err.Error(), "the agent is stopping: retry") { // the agent waits for jobs after it has stopped the API
		t.Errorf("the ADD that waited was told %v", err)
	}
	stacks, err := os.ReadFile(filepath.Join(node.StateDir(), "stall-before.txt"))
	if err != nil || !strings.Contains(string(stacks), "endpointmaps.controller.run") || !strings.Contains(node.AgentLog(), "The previous run recorded a stall") {
		t.Errorf("the next run does not say what hung: %v:\n%s", err, stacks)
	}
}

// TestPrivilegedStop_SecondSignal ends an agent at once that does not stop by itself.
func TestPrivilegedStop_SecondSignal(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t, "--stop-timeout=50s") // it must not pass before the second signal
	done := hang(t, node, freeze)
	pid := node.AgentPID()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if !strings.Contains(node.AgentLog(), "Stopping hive") {
			return errors.New("the agent does not stop")
		}
		return nil
	})
	// Without the second signal the exit code would be 1, after the 50 s that this stop may take.
	if code := exitCode(t, node); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d after the second signal, want %d", code, 128+int(syscall.SIGTERM))
	}
	freeze()
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	_ = done() // it was cut off
}
