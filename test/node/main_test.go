// Package node_test runs the real agent and the real plugin, as processes, on private nodes.
package node_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// binDir holds the programs under test; TestMain builds them once.
var binDir string

// builds builds agents of other versions.
var builds *nodekit.Builds

// TestMain runs the tests in a process of their own, so that agents and nodes end with it, also when it is interrupted.
func TestMain(m *testing.M) {
	if os.Getenv(traceEnv) != "" {
		traceMain()
	}
	if os.Getenv(shortageEnv) != "" {
		fmt.Fprintln(os.Stderr, "supervised agent:", shortageMain())
		os.Exit(99)
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // each test reports why it is skipped
	}
	os.Exit(nodekit.Contain(func() int {
		// Most tests wait more than they compute, also for their turn to generate load. A flag on the command line overrides this value.
		if err := errors.Join(build(), flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}

// build builds the programs under test. PROGRAMS_UNDER_TEST names a folder with programs that have been built before. Without a compiler (test/kernels) there
// are no agents of other versions.
func build() error {
	dir, err := os.MkdirTemp("", "waggle-bin-")
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err == nil {
		builds = nodekit.NewBuilds(dir)
	}
	if binDir = os.Getenv("PROGRAMS_UNDER_TEST"); binDir != "" {
		return nil
	}
	binDir = dir
	return nodekit.BuildPrograms(dir)
}

// startNode creates a node with a running agent.
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
	if err := node.WaitReady(t.Context()); err != nil {
		logPolicies(t, node)
		t.Fatal(err)
	}
}

func addPod(t *testing.T, node *nodekit.Node, name string) *nodekit.Pod {
	t.Helper()
	pod, err := node.AddPod(t.Context(), name)
	if err != nil {
		logPolicies(t, node)
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Close() })
	return pod
}

// logPolicies logs the progress of the agent with the state for which an ADD waits.
func logPolicies(t *testing.T, node *nodekit.Node) {
	t.Helper()
	commands := [][]string{{"status"}}
	for _, table := range []string{"policy-progress", "identities", "endpoint-identities", "endpoint-facts", "endpoint-policies"} {
		commands = append(commands, []string{"db", "show", table})
	}
	for _, command := range commands {
		text, err := node.Waggle(t.Context(), command...)
		t.Logf("waggle %s: %v\n%s", strings.Join(command, " "), err, text)
	}
}

// awaitFor is the deadline of required events: several times the slowest of them on an idle machine, which is 20 s until a node that loses direct packets has
// failed three tests.
const awaitFor = 90 * time.Second

// eventually retries until check succeeds, and fails the test with its last error after [awaitFor].
func eventually(t *testing.T, check func() error) {
	t.Helper()
	eventuallyWithin(t, awaitFor, check)
}

// eventuallyWithin is [eventually] with a limit.
func eventuallyWithin(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) { // wall clock: each limit is awaitFor or longer
			t.Fatal(err)
		}
		time.Sleep(nodekit.Pause(time.Since(began)))
	}
}
