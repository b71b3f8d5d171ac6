package node_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// kill is one way to end a process of Waggle at a bad moment.
type kill struct {
	name string
	do   func(k *killer) error
}

// kills lists the ten ways; one round uses each once.
var kills = []kill{
	{"agent at work, SIGKILL", func(k *killer) error { return k.atWork(syscall.SIGKILL) }},
	{"agent at work, SIGTERM", func(k *killer) error { return k.atWork(syscall.SIGTERM) }},
	{"agent during its start, SIGKILL", func(k *killer) error { return k.atStart(syscall.SIGKILL) }},
	{"agent during its start, SIGTERM", func(k *killer) error { return k.atStart(syscall.SIGTERM) }},
	{"agent during ADD, SIGKILL", func(k *killer) error { return k.agentDuring("ADD", syscall.SIGKILL) }},
	{"agent during DEL, SIGKILL", func(k *killer) error { return k.agentDuring("DEL", syscall.SIGKILL) }},
	{"plugin during ADD, SIGKILL", func(k *killer) error { return k.pluginDuring("ADD", syscall.SIGKILL) }},
	{"plugin during ADD, SIGTERM", func(k *killer) error { return k.pluginDuring("ADD", syscall.SIGTERM) }},
	{"plugin during DEL, SIGKILL", func(k *killer) error { return k.pluginDuring("DEL", syscall.SIGKILL) }},
	{"plugin during DEL, SIGTERM", func(k *killer) error { return k.pluginDuring("DEL", syscall.SIGTERM) }},
}

// When any process of Waggle is killed at any moment, traffic is not interrupted, denied traffic stays denied, other pods are attached and detached, and no
// state remains. The soak kills in a random order and after pauses.
func TestPrivilegedKills_DoNotDisruptTraffic(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, load.Full())
	churn := startChurn(t, node)
	k := &killer{T: t, node: node, rand: testseed.New(t)}
	for range soak(t) {
		order := k.rand.Perm(len(kills))
		if !soaks() {
			slices.Sort(order)
		}
		for _, i := range order {
			if soaks() {
				time.Sleep(k.within(time.Second))
			}
			traffic.logf(t, "%s", kills[i].name)
			if err := kills[i].do(k); err != nil {
				t.Errorf("%v %s: %v", traffic.At(), kills[i].name, err)
			}
		}
	}
	churn.end(t)
	traffic.end(t)
	eventuallyLasting(t, node, before)
	requireNothingClaimed(t, node)
}

// killer ends processes and starts agents again.
type killer struct {
	*testing.T
	node *nodekit.Node
	rand *rand.Rand
	pods int
}

// within returns a random duration from 0 to d.
func (k *killer) within(d time.Duration) time.Duration { return time.Duration(k.rand.Int64N(int64(d))) }

// end ends the agent with a signal.
func (k *killer) end(signal os.Signal) error {
	if signal == syscall.SIGKILL {
		return k.node.KillAgent(k.Context())
	}
	return k.node.StopAgent(k.Context())
}

// start starts the agent and waits until pods can be attached.
func (k *killer) start() error {
	if err := k.node.StartAgent(); err != nil {
		return err
	}
	return k.node.WaitReady(k.Context())
}

func (k *killer) atWork(signal os.Signal) error { return errors.Join(k.end(signal), k.start()) }

// atStart ends an agent that has been running for up to half a second: on a quiet machine all start hooks take less time, so the moment may be during, before
// or after any of them.
func (k *killer) atStart(signal os.Signal) error {
	if err := errors.Join(k.end(syscall.SIGKILL), k.node.StartAgent()); err != nil {
		return err
	}
	time.Sleep(k.within(500 * time.Millisecond))
	err := k.end(signal)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		err = nil // the agent had not installed its signal handler yet
	}
	return errors.Join(err, k.start())
}

// during is longer than an ADD or DEL takes.
const during = 40 * time.Millisecond

// agentDuring ends the agent during a command. The command may fail, and the runtime sends DEL.
func (k *killer) agentDuring(command string, signal os.Signal) error {
	pod, err := k.pod(command == "DEL")
	if err != nil {
		return err
	}
	do := pod.Attach
	if command == "DEL" {
		do = pod.Detach
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = do(k.Context()) }()
	time.Sleep(k.within(during))
	err = k.end(signal)
	<-done
	return errors.Join(err, k.start(), pod.Detach(k.Context()), pod.Close())
}

// pluginDuring ends the plugin during a command.
func (k *killer) pluginDuring(command string, signal os.Signal) error {
	pod, err := k.pod(command == "DEL")
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(binDir, "waggle-cni"))
	cmd.Env = []string{"CNI_COMMAND=" + command}
	for name, value := range environment(pod) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"waggle","type":"waggle-cni","socket-path":%q,"state-dir":%q}`,
		filepath.Join(k.node.StateDir(), "waggle.sock"), k.node.StateDir()))
	if err := k.node.Do(cmd.Start); err != nil {
		return err
	}
	time.Sleep(k.within(during))
	_ = cmd.Process.Signal(signal) // it may have ended
	_ = cmd.Wait()
	return errors.Join(pod.Detach(k.Context()), pod.Close())
}

// pod creates a pod, attached if the command needs an attached one.
func (k *killer) pod(attached bool) (*nodekit.Pod, error) {
	k.pods++
	name := fmt.Sprintf("killed-%d", k.pods)
	if attached {
		return k.node.AddPod(k.Context(), name)
	}
	return k.node.NewPod(name)
}
