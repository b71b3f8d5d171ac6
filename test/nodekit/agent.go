package nodekit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
)

// process is a child process inside a node.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; valid once done is closed
}

// StartAgent starts the agent and returns immediately; see [Node.WaitReady].
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
		"--lib-dir", n.path("lib"), "--node-name", "node-1", "--cgroup-root", n.Cgroup(), "--stop-timeout", stopTimeout.String()}, n.options.AgentArgs...)
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

// AgentPID returns the process id of the running agent.
func (n *Node) AgentPID() int { return n.agent.cmd.Process.Pid }

// AgentLog returns the content of the agent's log file.
func (n *Node) AgentLog() string {
	text, err := os.ReadFile(n.path("agent.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// WaitReady waits until the agent reports that pods can be attached, at most [readyTimeout].
func (n *Node) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// This queries the API that `waggle status` uses, without a process per query, and through the agent's view of the node's mounts.
	agent := agentclient.New(filepath.Join("/proc", strconv.Itoa(n.AgentPID()), "root", n.StateDir(), "waggle.sock"))
	for {
		began := time.Now()
		answer, last := agent.Status(ctx, true)
		switch {
		case last != nil:
		case answer.Cilium.State != models.StatusStateFailure:
			return nil
		default:
			last = errors.New(answer.Cilium.Msg)
		}
		select {
		case <-n.agent.done:
			return fmt.Errorf("the agent ended while it started: %w\n%s", n.agent.err, n.AgentLog())
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %w", last)
		case <-time.After(Pause(time.Since(began))):
		}
	}
}

// Pause returns the interval between two polls, from the duration of the first one: polling uses at most a quarter of a CPU, so that waiting tests leave the
// CPUs to other tests.
func Pause(took time.Duration) time.Duration {
	return min(max(3*took, 20*time.Millisecond), 200*time.Millisecond)
}

const (
	// readyTimeout is the maximum time from the start of the agent until it is ready: the maximum time of its start hooks. On an emulated CPU, two agents that
	// start together beside other load may need two minutes, most of them for the kernel's verifier.
	readyTimeout = 5 * time.Minute
	// stopTimeout is the stop timeout of the agent on a node, instead of the 4.5 s of an installed agent. An emulated or busy CPU may need more than 4.5 s; a
	// hanging stop hook exceeds this timeout as well.
	stopTimeout = 20 * time.Second
	// endTimeout is the maximum time from a signal to the end of the process, also of an agent with a longer stop timeout.
	endTimeout = time.Minute
)

// StopAgent sends SIGTERM to the agent and waits for its end. An exit code other than 0 is an error, on every CPU: a stop hook failed or did not return in
// time. The error contains the agent's log since the signal.
func (n *Node) StopAgent(ctx context.Context) error {
	before := len(n.AgentLog())
	err := n.EndAgent(ctx, syscall.SIGTERM)
	if err == nil {
		return nil
	}
	log := n.AgentLog()
	return fmt.Errorf("stop the agent: %w:\n%s", err, log[min(before, len(log)):])
}

// KillAgent ends the agent with SIGKILL.
func (n *Node) KillAgent(ctx context.Context) error {
	err := n.EndAgent(ctx, syscall.SIGKILL)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return err
}

// EndAgent sends a signal to the agent and waits for its end. It returns an error for the exit code or for a timeout.
func (n *Node) EndAgent(ctx context.Context, signal os.Signal) error {
	p := n.agent
	if p == nil {
		return nil
	}
	n.agent = nil
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("the agent did not end after %v: %w", signal, ctx.Err())
	}
}

// Waggle runs the program waggle against the node's agent and returns its output.
func (n *Node) Waggle(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--host", "unix://" + filepath.Join(n.StateDir(), "waggle.sock")}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(n.options.BinDir, "waggle"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Do(cmd.Run); err != nil {
		// Some commands say in their output why they fail.
		return stdout.String(), fmt.Errorf("waggle %v: %w: %s", args[2:], err, bytes.TrimSpace([]byte(cmp.Or(stderr.String(), stdout.String()))))
	}
	return stdout.String(), nil
}

// AddAgentArgs adds flags of the agent, which apply from its next start on.
func (n *Node) AddAgentArgs(args ...string) {
	n.options.AgentArgs = append(slices.Clone(n.options.AgentArgs), args...)
}
