package nodekit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child that runs inside a node.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; valid once done is closed
}

// StartAgent starts the agent and returns at once; see [Node.WaitReady].
func (n *Node) StartAgent() error {
	var output io.Writer = n.options.Output
	if output == nil {
		file, err := os.OpenFile(n.path("agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		output = file
	}
	args := append([]string{"--state-dir", n.StateDir(), "--bpf-root", n.BPFRoot(), "--manifests-dir", n.ManifestsDir(),
		"--lib-dir", n.path("lib"), "--node-name", "node-1", "--cgroup-root", n.Cgroup()}, n.options.AgentArgs...)
	program := n.agentPath
	if program == "" {
		program = filepath.Join(n.options.BinDir, "waggle-agent")
	}
	command := append([]string{program}, args...)
	if n.options.Reduced {
		var err error
		if command, err = n.reduce(command); err != nil {
			return fmt.Errorf("reduce the agent's rights: %w", err)
		}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	n.agent = p
	return nil
}

// AgentPID is the process id of the running agent.
func (n *Node) AgentPID() int { return n.agent.cmd.Process.Pid }

// AgentLog returns what the agent wrote to its log file.
func (n *Node) AgentLog() string {
	text, err := os.ReadFile(n.path("agent.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// WaitReady waits until the agent says that pods can be attached.
func (n *Node) WaitReady(ctx context.Context) error {
	var last error
	for {
		_, last = n.Waggle(ctx, "status", "--brief")
		if last == nil {
			return nil
		}
		select {
		case <-n.agent.done:
			return fmt.Errorf("the agent ended while it started: %w\n%s", n.agent.err, n.AgentLog())
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %w", last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Emulated is set in the environment of tests whose CPU is emulated.
const Emulated = "WAGGLE_TEST_EMULATED"

// StopAgent ends the agent with SIGTERM and waits for it. One that ends before all its loops have is a fault, but where the
// CPU is emulated: the agent ends within 5 s, and there they need more; and where it had no CPU for most of them, which is seen,
// and has said what was not done yet.
func (n *Node) StopAgent(ctx context.Context) error {
	log := len(n.AgentLog())
	ending := n.EndAgent(ctx, syscall.SIGTERM)
	if exit := (*exec.ExitError)(nil); !errors.As(ending.Err, &exit) || exit.ExitCode() != 1 {
		return ending.Err
	}
	if os.Getenv(Emulated) != "" {
		return nil
	}
	last := n.AgentLog()
	last = last[min(log, len(last)):]
	if ending.Starved() && strings.Contains(last, "Stopping takes long") {
		return nil
	}
	return fmt.Errorf("stop the agent: %w after %v, of which its threads waited %v for a CPU:\n%s", ending.Err, ending.Took, ending.Waited, last)
}

// KillAgent ends the agent with SIGKILL.
func (n *Node) KillAgent(ctx context.Context) error {
	err := n.EndAgent(ctx, syscall.SIGKILL).Err
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return err
}

// Ending is how an agent ended.
type Ending struct {
	Err    error         // its exit code, or why it did not end
	Took   time.Duration // from the signal on
	Waited time.Duration // how long its threads could have run meanwhile and had no CPU, in sum
}

// Starved tells whether the machine is to blame for an end that took long: at every moment of it, as it were, one of the agent's threads
// waited for a CPU. One thread that hangs while others work does not make it so, unless the machine is very busy.
func (e Ending) Starved() bool { return e.Waited > e.Took }

// EndAgent sends the agent a signal and waits for its end.
func (n *Node) EndAgent(ctx context.Context, signal os.Signal) Ending {
	p := n.agent
	if p == nil {
		return Ending{}
	}
	n.agent = nil
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	before, latest := runDelays(p.cmd.Process.Pid), map[string]time.Duration{}
	began := time.Now()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return Ending{Err: err}
	}
	for {
		select {
		case <-p.done:
			return Ending{Err: p.err, Took: time.Since(began), Waited: since(before, latest)}
		case <-ctx.Done():
			_ = p.cmd.Process.Kill()
			<-p.done
			return Ending{Err: fmt.Errorf("the agent did not end within 30 s of %v", signal), Took: time.Since(began)}
		case <-time.After(50 * time.Millisecond): // its threads say until they end what they have waited
			maps.Copy(latest, runDelays(p.cmd.Process.Pid))
		}
	}
}

// runDelays is how long each thread of a process could have run and had no CPU. One that has ended is not there.
func runDelays(pid int) map[string]time.Duration {
	delays := map[string]time.Duration{}
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		if fields := strings.Fields(string(text)); len(fields) == 3 { // on a CPU, waiting for one, times that it was given one
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			delays[thread] = time.Duration(ns)
		}
	}
	return delays
}

// WaitingForCPU watches a process. What it returns says each time how long threads of that could have run since and had no CPU,
// in sum; those that have ended are left out.
func WaitingForCPU(pid int) (waited func() time.Duration, err error) {
	before := runDelays(pid)
	if len(before) == 0 {
		return nil, fmt.Errorf("process %d has no threads, or the kernel does not say what they wait for a CPU", pid)
	}
	return func() time.Duration { return since(before, runDelays(pid)) }, nil
}

// since sums up how much longer threads have waited than before. One may have the number of another that has ended.
func since(before, after map[string]time.Duration) (sum time.Duration) {
	for thread, delay := range after {
		sum += max(0, delay-before[thread])
	}
	return sum
}

// Waggle runs the operator's command against the node's agent and returns what it printed.
func (n *Node) Waggle(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--host", "unix://" + filepath.Join(n.StateDir(), "waggle.sock")}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(n.options.BinDir, "waggle"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Do(cmd.Run); err != nil {
		return stdout.String(), fmt.Errorf("waggle %v: %w: %s", args[2:], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// AddAgentArgs gives the agent further flags from its next start on.
func (n *Node) AddAgentArgs(args ...string) {
	n.options.AgentArgs = append(slices.Clone(n.options.AgentArgs), args...)
}
