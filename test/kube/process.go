package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program of a cluster.
type Process struct {
	Name    string // of its log
	cmd     *exec.Cmd
	log     string
	done    chan struct{}
	err     error       // of Wait; valid once done is closed
	stopped atomic.Bool // Stop or Kill was called
}

// startProcess starts a program in a place and appends its output to the log.
func startProcess(at netNS, name, log string, argv ...string) (*Process, error) {
	return startCommand(at.do, at.command(argv...), name, log)
}

func startCommand(do func(func() error) error, cmd *exec.Cmd, name, log string) (*Process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if err := do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, log: log, done: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	return p, nil
}

// StartOutside starts a program outside all nodes, in the control plane's namespace, which is the router between the nodes. The program ends with the test
// program at the latest.
func (c *Cluster) StartOutside(name string, argv ...string) (*Process, error) {
	return c.start("outside-"+name, c.control, argv...)
}

// RunOutside runs a program in the control plane's namespace until it exits and returns its output.
func (c *Cluster) RunOutside(ctx context.Context, argv ...string) (string, error) {
	return run(ctx, c.control, nil, argv...)
}

// PID returns the process id in this program's PID namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Log returns the output of the process and of previous processes with the same name.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Stop sends SIGTERM to the process and waits until it has ended.
func (p *Process) Stop() error { return p.end(unix.SIGTERM) }

// Kill sends SIGKILL to the process and waits until it has ended.
func (p *Process) Kill() error {
	err := p.end(unix.SIGKILL)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return err
}

// endTimeout is the maximum time from a signal to the end of a process.
const endTimeout = time.Minute

func (p *Process) end(signal syscall.Signal) error {
	if p == nil {
		return nil
	}
	p.stopped.Store(true)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(endTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %v of %v\n%s", p.Name, endTimeout, signal, tail(p.log, 10))
	}
}

// ended returns an error if the process has ended without a call of Stop or Kill.
func (p *Process) ended() error {
	if p.stopped.Load() {
		return nil
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %v\n%s", p.Name, p.err, tail(p.log, 20))
	default:
		return nil
	}
}

// run runs a program in a place until it exits and returns its output.
func run(ctx context.Context, at netNS, stdin io.Reader, argv ...string) (string, error) {
	cmd := at.command(argv...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := at.do(cmd.Start); err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
