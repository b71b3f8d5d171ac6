package node_test

import (
	"context"
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

// kill is one way to end a process of ours at a bad moment.
type kill struct {
	name string
	do   func(k *killer) error
}

// kills are ten ways; one round has each once.
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

// Whatever of ours is killed, and whenever, traffic does not notice, forbidden traffic stays forbidden, other pods come and
// go, and nothing stays behind. The soak kills in a random order and after pauses.
func TestPrivilegedKills_DisturbNobody(t *testing.T) {
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
			traffic.say(t, "%s", kills[i].name)
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

// within is a moment from now to d later.
func (k *killer) within(d time.Duration) time.Duration { return time.Duration(k.rand.Int64N(int64(d))) }

// end ends the agent and does not mind how it goes.
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
	ctx, cancel := context.WithTimeout(k.Context(), 2*time.Minute)
	defer cancel()
	return k.node.WaitReady(ctx)
}

func (k *killer) atWork(signal os.Signal) error { return errors.Join(k.end(signal), k.start()) }

// atStart ends an agent that has been running for up to half a second: on a quiet machine that is longer than all start
// hooks take, so the moment may lie in any of them, before, or behind.
func (k *killer) atStart(signal os.Signal) error {
	if err := errors.Join(k.end(syscall.SIGKILL), k.node.StartAgent()); err != nil {
		return err
	}
	time.Sleep(k.within(500 * time.Millisecond))
	err := k.end(signal)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		err = nil // it had not come as far as to ask for the signal
	}
	return errors.Join(err, k.start())
}

// during is longer than an ADD or DEL takes.
const during = 40 * time.Millisecond

// agentDuring ends the agent while a command is at work. The command may fail, and the runtime sends DEL.
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

// pluginDuring ends the plugin while it is at work.
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

// pod makes a pod, attached if the command needs one that is.
func (k *killer) pod(attached bool) (*nodekit.Pod, error) {
	k.pods++
	name := fmt.Sprintf("killed-%d", k.pods)
	if attached {
		return k.node.AddPod(k.Context(), name)
	}
	return k.node.NewPod(name)
}
