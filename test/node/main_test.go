// Package node_test runs the real agent and the real plugin, as processes, on private nodes.
package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// binDir holds the programs under test; TestMain builds them once.
var binDir string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "waggle-bin-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binDir = dir
	for _, name := range []string{"waggle-agent", "waggle-cni", "waggle"} {
		cmd := exec.Command("go", "build", "-o", dir+"/"+name, "github.com/waggle-net/waggle/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return m.Run(), nil
}

// startNode makes a node with a running agent.
func startNode(t *testing.T, options nodekit.Options) *nodekit.Node {
	t.Helper()
	node := newNode(t, options)
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	return node
}

func newNode(t *testing.T, options nodekit.Options) *nodekit.Node {
	t.Helper()
	testnet.RequirePrivileges(t)
	options.BinDir = binDir
	node, err := nodekit.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", node.AgentLog())
		}
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func waitReady(t *testing.T, node *nodekit.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := node.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func addPod(t *testing.T, node *nodekit.Node, name string) *nodekit.Pod {
	t.Helper()
	pod, err := node.AddPod(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Close() })
	return pod
}

// eventually retries until check succeeds, and fails the test with its last error after a while.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
