package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
)

// onGroup returns the number of hooks for sockets and of programs on these hooks of a control group.
func onGroup(t *testing.T, path string) (hooks, programs int) {
	t.Helper()
	spec, err := bpf.Load(bpf.Sock)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, p := range spec.Programs {
		have, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: p.AttachType})
		if err != nil {
			t.Fatal(err)
		}
		hooks, programs = hooks+1, programs+len(have.Programs)
	}
	return hooks, programs
}

// wantOnGroup waits until each hook has the given number of programs.
func wantOnGroup(t *testing.T, node *nodekit.Node, each int) {
	t.Helper()
	eventually(t, func() error {
		if hooks, have := onGroup(t, node.Cgroup()); have != hooks*each {
			return fmt.Errorf("%d programs on %d hooks of %s", have, hooks, node.Cgroup())
		}
		return nil
	})
}

// The agent, with the capabilities of its container, attaches programs to the control group in its flags and to no other. The programs stay when the agent
// ends, are restored when another program detaches them, and are removed when kube-proxy serves services.
func TestPrivilegedSocketLB_AttachedToConfiguredCgroup(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{Reduced: true, AgentArgs: []string{"--verify-interval=1s"}})
	_, above := onGroup(t, filepath.Dir(node.Cgroup()))
	start := func() {
		t.Helper()
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	stop := func() {
		t.Helper()
		if err := node.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	wantOnGroup(t, node, 1)

	err := node.Do(func() error {
		l, err := link.LoadPinnedLink(filepath.Join(node.BPFRoot(), "waggle", "links", "cgroup_connect4"), nil)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := l.Detach(); err != nil {
			return err
		}
		return os.Remove(filepath.Join(node.BPFRoot(), "waggle", "links", "cgroup_recvmsg6"))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOnGroup(t, node, 1)

	stop()
	if hooks, have := onGroup(t, node.Cgroup()); have != hooks {
		t.Errorf("%d programs on %d hooks after the agent has ended", have, hooks)
	}
	start()
	wantOnGroup(t, node, 1)
	stop()
	node.AddAgentArgs("--kube-proxy-replacement=false")
	start()
	wantOnGroup(t, node, 0)
	if _, now := onGroup(t, filepath.Dir(node.Cgroup())); now != above {
		t.Errorf("%d programs on the group above, %d before", now, above)
	}
}
