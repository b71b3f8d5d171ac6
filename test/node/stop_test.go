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

// stopWithin is how long the agent may take to end.
const stopWithin = 5 * time.Second

// ended is how an agent ended.
type ended struct {
	nodekit.Ending
	code int
}

// stopped sends SIGTERM and waits for the end.
func stopped(t *testing.T, node *nodekit.Node) ended {
	t.Helper()
	e := ended{Ending: node.EndAgent(t.Context(), syscall.SIGTERM)}
	if exit := (*exec.ExitError)(nil); errors.As(e.Err, &exit) {
		e.code = exit.ExitCode()
	} else if e.Err != nil {
		t.Fatal(e.Err)
	}
	return e
}

// within tells whether the end took no longer than it may. What the machine kept the agent waiting for a CPU comes on top.
func (e ended) within(limit time.Duration) bool { return e.Took <= limit+e.Waited }

func (e ended) String() string {
	return fmt.Sprintf("exit code %d after %v, %v of waiting for a CPU", e.code, e.Took, e.Waited)
}

// TestPrivilegedStop_UnderParallelAddsAndDels ends the agent while 25 pods come and 25 go. Each call succeeds or says what to
// do, and when the runtime has repeated what failed nothing is left over.
func TestPrivilegedStop_UnderParallelAddsAndDels(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := lasting(t, node)
	const count = 25
	for _, pause := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
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
		// Beside all these plugins an agent that has no CPU may not come to an end of what it does, and says so.
		end := stopped(t, node)
		if starved := end.code == 1 && end.Starved(); end.code != 0 && !starved || !end.within(stopWithin) {
			t.Errorf("%s after the calls began: %v", pause, end)
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
		t.Logf("stopped %s after the calls began: %v; %d of %d calls failed", pause, end, failed, 2*count)
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

// TestPrivilegedStop_WhileStarting ends the agent at moments of its start; the next one starts as if nothing had been.
func TestPrivilegedStop_WhileStarting(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "lasting")
	before := lasting(t, node)
	for i := range 8 {
		if end := stopped(t, node); !end.within(stopWithin) {
			t.Errorf("try %d: %v", i, end)
		}
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

// frozen is a node whose agent's loops can be held up. Its limits are a tenth, on the same code path.
func frozen(t *testing.T) (node *nodekit.Node, freeze func(names ...string)) {
	t.Helper()
	node = newNode(t, nodekit.Options{})
	if builds == nil {
		t.Skip("the programs under test come from outside and no agent can be built: run where a compiler is")
	}
	agent, err := builds.Agent(nodekit.Build{Tags: "freeze"})
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

// hang has an ADD wait for a loop that is held up. Done says what became of it and takes the pod away.
func hang(t *testing.T, node *nodekit.Node, freeze func(...string)) (done func() error) {
	t.Helper()
	freeze(frozenLoop)
	pod, err := node.NewPod("waits")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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

// TestPrivilegedStop_WithAJobThatHangs: the process ends in time all the same, says so with its exit code, and the next one
// says in its log what hung.
func TestPrivilegedStop_WithAJobThatHangs(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t)
	done := hang(t, node, freeze)
	end := stopped(t, node)
	if end.code != 1 || !end.within(stopWithin) {
		t.Error(end)
	}
	t.Logf("with a job that hangs: %v", end)
	freeze()
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	if err := done(); err == nil || !strings.Contains(err.Error(), "the agent stops: call again") { // jobs are waited for after the API
		t.Errorf("the ADD that waited was told %v", err)
	}
	stacks, err := os.ReadFile(filepath.Join(node.StateDir(), "wedge-before.txt"))
	switch {
	case err == nil && strings.Contains(string(stacks), "endpointmaps.controller.run") && strings.Contains(node.AgentLog(), "Something hung in the run before"):
	case end.Waited > time.Second:
		t.Logf("the agent did not come to write down what hung: %v", end) // which it has a second for
	default:
		t.Errorf("the next run does not say what hung: %v:\n%s", err, stacks)
	}
}

// TestPrivilegedStop_SecondSignal ends at once what does not stop by itself.
func TestPrivilegedStop_SecondSignal(t *testing.T) {
	t.Parallel()
	node, freeze := frozen(t)
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
	if end := stopped(t, node); end.code != 128+int(syscall.SIGTERM) || !end.within(time.Second) {
		t.Errorf("the second signal: %v", end)
	}
	freeze()
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	_ = done() // it was cut off
}
