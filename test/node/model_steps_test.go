//go:build amd64

package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// step is one action on a node. Its printed form is "<what> <slot>", followed by " <who> <at> <errno>" when the at-th call of the plugin or the agent fails.
// The errno "KILL" kills the process.
type step struct {
	what  string
	slot  int
	who   string // "", "plugin" or "agent"
	at    int
	errno string
}

func (s step) String() string {
	text := fmt.Sprintf("%s %d", s.what, s.slot)
	if s.who != "" {
		text += fmt.Sprintf(" %s %d %s", s.who, s.at, s.errno)
	}
	return text
}

// whats lists the kinds of steps; frequent kinds are repeated in the list.
var whats = []string{"add", "add", "add", "add", "del", "del", "again", "late", "check", "gc", "abandon", "kill", "term"}

// disturbable lists the kinds of steps during which a process may be disturbed.
var disturbable = []string{"add", "del", "again", "gc"}

// errnos maps names to errors; 0 kills the process.
var errnos = map[string]syscall.Errno{"EINTR": unix.EINTR, "ENOMEM": unix.ENOMEM, "EBUSY": unix.EBUSY, "EPERM": unix.EPERM,
	"EIO": unix.EIO, "ENOSPC": unix.ENOSPC, "KILL": 0}

func randomStep(random *rand.Rand) step {
	s := step{what: whats[random.IntN(len(whats))], slot: random.IntN(slots)}
	if !slices.Contains(disturbable, s.what) || random.IntN(2) == 0 {
		return s
	}
	s.who = []string{"plugin", "agent"}[random.IntN(2)]
	if s.what == "gc" {
		s.who = "agent" // the library runs the plugin
	}
	s.at = 1 + random.IntN(24)
	s.errno = []string{"EINTR", "ENOMEM", "EBUSY", "EPERM", "EIO", "ENOSPC", "KILL", "KILL"}[random.IntN(8)]
	return s
}

func printSteps(steps []step) string {
	var texts []string
	for _, s := range steps {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, "; ")
}

func parseSteps(text string) (steps []step, err error) {
	for part := range strings.SplitSeq(text, ";") {
		fields := append(strings.Fields(part), "", "0", "")
		if len(fields) != 5 && len(fields) != 8 {
			return nil, fmt.Errorf("step %q: want what, slot and perhaps who, at and errno", part)
		}
		s := step{what: fields[0], who: fields[2], errno: fields[4]}
		var err1, err2 error
		s.slot, err1 = strconv.Atoi(fields[1])
		s.at, err2 = strconv.Atoi(fields[3])
		_, known := errnos[s.errno]
		if err := errors.Join(err1, err2); err != nil || !slices.Contains(whats, s.what) || s.slot >= slots || s.who != "" && !known {
			return nil, fmt.Errorf("step %q: is none: %w", part, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// do performs a step and updates the model. The error describes a violation.
func (m *model) do(ctx context.Context, s step) error {
	pod := m.pods[s.slot]
	switch {
	case s.what == "kill" && m.up:
		m.up = false
		return m.node.KillAgent(ctx)
	case s.what == "term" && m.up:
		m.up = false
		return m.stop(ctx)
	case s.what == "add" && pod == nil:
		return m.add(ctx, s)
	case s.what == "late" && m.previous[s.slot] != nil:
		return m.previous[s.slot].Detach(ctx)
	case pod == nil:
		return nil // other steps need a pod
	case s.what == "del":
		return m.delete(ctx, s)
	case s.what == "again":
		return m.again(ctx, s)
	case s.what == "check" && m.up && m.checks[s.slot]:
		return until(func() error { return pod.Check(ctx) }) // the agent repairs damage meanwhile
	case s.what == "gc":
		return m.gc(ctx, s)
	case s.what == "abandon":
		return m.forget(s.slot)
	}
	return nil
}

// stop ends the agent with SIGTERM. An agent that has just been started may not have installed its signal handler yet.
func (m *model) stop(ctx context.Context) error {
	err := m.node.StopAgent(ctx)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return err
}

// disturbed runs f while the agent is disturbed if the step says so, and reports whether the disturbance took place.
func (m *model) disturbed(ctx context.Context, s step, f func() error) (acted bool, failed, err error) {
	if s.who != "agent" || !m.up {
		return false, f(), nil
	}
	if err := m.start(ctx); err != nil { // a fault may end a starting agent, which then starts again
		return false, nil, err
	}
	stop, err := traceAgent(m.node, traceRule{At: s.at, Errno: errnos[s.errno]})
	if err != nil {
		return false, nil, err
	}
	failed = f()
	report, err := stop()
	if report.Acted && s.errno == "KILL" {
		m.up = false
		err = errors.Join(err, m.node.KillAgent(ctx))
	}
	return report.Acted, failed, err
}

// call runs a command of the runtime for one pod, disturbed as the step says.
func (m *model) call(ctx context.Context, s step, pod *nodekit.Pod, command string) (acted bool, failed, err error) {
	if s.who == "plugin" {
		report, failed := tracePlugin(m.node, pod, command, traceRule{At: s.at, Errno: errnos[s.errno]})
		return report.Acted, failed, nil
	}
	return m.disturbed(ctx, s, func() error {
		if command == "ADD" {
			return pod.Attach(ctx)
		}
		return pod.Detach(ctx)
	})
}

// add creates a sandbox. It may fail only when a process was disturbed; then the runtime removes the sandbox.
func (m *model) add(ctx context.Context, s step) error {
	if err := m.startForADD(); err != nil {
		return err
	}
	pod, err := m.node.NewPod(fmt.Sprintf("pod-%d", s.slot))
	if err != nil {
		return err
	}
	m.pods[s.slot] = pod
	return m.attach(ctx, s, pod)
}

// startForADD does not wait until the agent is ready, because ADD waits for that. But ADD waits only 5 s for the agent's socket.
func (m *model) startForADD() error {
	if m.up {
		return nil
	}
	m.up = true
	if err := m.node.StartAgent(); err != nil {
		return err
	}
	return until(func() error {
		conn, err := net.Dial("unix", filepath.Join(m.node.StateDir(), "waggle.sock"))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (m *model) attach(ctx context.Context, s step, pod *nodekit.Pod) error {
	acted, failed, err := m.call(ctx, s, pod, "ADD")
	switch {
	case err != nil:
		return err
	case failed == nil:
		m.checks[s.slot] = s.who != "plugin"
		return nil
	case !acted:
		return fmt.Errorf("nothing was disturbed: %w", failed)
	}
	return m.remove(ctx, s.slot, true)
}

// remove removes a sandbox as the runtime does: with a DEL if del is set, which must succeed at once because no process is disturbed, and then the namespace.
func (m *model) remove(ctx context.Context, slot int, del bool) error {
	if del {
		if err := m.pods[slot].Detach(ctx); err != nil {
			return err
		}
	}
	return m.forget(slot)
}

// forget removes the namespace and records the sandbox as the previous one of its slot.
func (m *model) forget(slot int) error {
	m.previous[slot] = m.pods[slot]
	delete(m.pods, slot)
	delete(m.checks, slot)
	return m.previous[slot].Close()
}

func (m *model) delete(ctx context.Context, s step) error {
	acted, failed, err := m.call(ctx, s, m.pods[s.slot], "DEL")
	if err == nil && failed != nil && !acted {
		err = fmt.Errorf("nothing was disturbed: %w", failed)
	}
	if err != nil {
		return err
	}
	return m.remove(ctx, s.slot, failed != nil)
}

// again detaches a sandbox and attaches the same one.
func (m *model) again(ctx context.Context, s step) error {
	pod := m.pods[s.slot]
	if err := errors.Join(pod.Detach(ctx), m.startForADD()); err != nil {
		return err
	}
	return m.attach(ctx, s, pod)
}

// gc calls GC without one sandbox and then removes it.
func (m *model) gc(ctx context.Context, s step) error {
	acted, failed, err := m.disturbed(ctx, s, func() error { return m.collectGarbage(ctx, s.slot) })
	if err == nil && failed != nil && acted {
		failed = m.collectGarbage(ctx, s.slot)
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	return m.remove(ctx, s.slot, false)
}
