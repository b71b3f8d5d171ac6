package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// builtDir is the folder in which build has put the program; empty if no test needed the program.
var builtDir string

// build builds the real program once for all tests. On a machine without a compiler (test/kernels), the environment contains its path.
var build = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("PROGRAMS_UNDER_TEST"); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "waggle-cni-")
	if err != nil {
		return "", err
	}
	builtDir = dir
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "github.com/waggle-net/waggle/cmd/waggle-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugin: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	_ = os.RemoveAll(builtDir)
	os.Exit(status)
}

func binDir(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// node is the plugin's view of a machine: a network namespace and an agent.
type node struct {
	t     testing.TB
	net   *testnet.Namespace
	agent *fakeAgent
	dir   string
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, net: testnet.New(t), dir: t.TempDir()}
	n.agent = newFakeAgent(t, n.dir)
	n.agent.set(func() { n.agent.attach = n.setUp })
	return n
}

// setUp sets a link up, as the agent does with a host end after it has attached the programs.
func (n *node) setUp(name string) (err error) {
	n.net.Do(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName(name); err != nil {
			return
		}
		if link.Attrs().Flags&net.FlagUp != 0 {
			n.t.Errorf("%s is up before the agent has it in its maps", name)
		}
		err = netlink.LinkSetUp(link)
	})
	return err
}

// call is one run of the plugin.
type call struct {
	command, containerID, netns, ifName, args string
	version                                   string // default 1.1.0
	extra                                     string // more fields of the configuration
	stdin                                     string // replaces the configuration
}

func (n *node) conf(c call) string {
	if c.stdin != "" {
		return c.stdin
	}
	version := c.version
	if version == "" {
		version = "1.1.0"
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"waggle","type":"waggle-cni","state-dir":%q%s}`, version, n.dir, c.extra)
}

// command prepares a run of the plugin.
func (n *node) command(c call) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binDir(n.t), "waggle-cni"))
	cmd.Stdin = strings.NewReader(n.conf(c))
	cmd.Env = []string{"CNI_COMMAND=" + c.command, "CNI_CONTAINERID=" + c.containerID, "CNI_NETNS=" + c.netns,
		"CNI_IFNAME=" + c.ifName, "CNI_ARGS=" + c.args, "CNI_PATH=/nowhere"}
	return cmd
}

// run returns the result that the plugin printed, or its error.
func (n *node) run(c call) ([]byte, *types.Error) {
	n.t.Helper()
	binDir(n.t) // outside the namespace, where the build can use the network
	var stdout, stderr bytes.Buffer
	var runErr error
	n.net.Do(func() {
		cmd := n.command(c)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		runErr = cmd.Run()
	})
	if stderr.Len() > 0 {
		n.t.Errorf("the plugin wrote to stderr: %s", &stderr)
	}
	if runErr == nil {
		return stdout.Bytes(), nil
	}
	failed := &types.Error{}
	if err := json.Unmarshal(stdout.Bytes(), failed); err != nil {
		n.t.Fatalf("%s: %v: printed %q, which is no CNI error: %v", c.command, runErr, &stdout, err)
	}
	return nil, failed
}

// must fails the test when a call fails.
func (n *node) must(c call) []byte {
	n.t.Helper()
	out, failed := n.run(c)
	if failed != nil {
		n.t.Fatalf("%s %s: code %d: %s; %s", c.command, c.containerID, failed.Code, failed.Msg, failed.Details)
	}
	return out
}

// requireError requires an error with a code and with all words in its text.
func (n *node) requireError(c call, code uint, words ...string) {
	n.t.Helper()
	out, failed := n.run(c)
	if failed == nil {
		n.t.Fatalf("%s succeeded and printed %s", c.command, out)
	}
	if failed.Code != code {
		n.t.Errorf("%s: code %d (%s), want %d", c.command, failed.Code, failed.Msg, code)
	}
	for _, w := range words {
		if !strings.Contains(failed.Msg+" "+failed.Details, w) {
			n.t.Errorf("%s: %q does not contain %q", c.command, failed.Msg+" | "+failed.Details, w)
		}
	}
}

// links lists the node's links other than lo, as "name group".
func (n *node) links() (all []string) {
	n.t.Helper()
	n.net.Do(func() {
		links, err := netlink.LinkList()
		if err != nil {
			n.t.Error(err)
		}
		for _, l := range links {
			if a := l.Attrs(); a.Name != "lo" {
				all = append(all, fmt.Sprintf("%s %#x", a.Name, a.Group))
			}
		}
	})
	return all
}

// wantNothing requires that node and agent hold no resources.
func (n *node) wantNothing() {
	n.t.Helper()
	if links := n.links(); len(links) > 0 {
		n.t.Errorf("links are left: %v", links)
	}
	if addresses, endpoints := n.agent.left(); len(addresses)+len(endpoints) > 0 {
		n.t.Errorf("the agent still has addresses %v, endpoints %v", addresses, endpoints)
	}
}

// pod is a network namespace with a path.
type pod struct {
	*testnet.Namespace
	path string
}

func newPod(t testing.TB) pod {
	ns := testnet.New(t)
	return pod{ns, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.Handle()))}
}

func add(containerID string, p pod) call {
	return call{command: "ADD", containerID: containerID, netns: p.path, ifName: "eth0"}
}

func del(containerID string, p pod) call {
	return call{command: "DEL", containerID: containerID, netns: p.path, ifName: "eth0"}
}

func hostName(containerID string, attempt int) string {
	return podlink.HostName(containerID, "eth0", attempt)
}

// deleteInto returns a callback that collects the ids that a replay deletes.
func deleteInto(ids *[]string) func(context.Context, deletequeue.Entry) error {
	return func(_ context.Context, e deletequeue.Entry) error {
		*ids = append(*ids, e.String())
		return nil
	}
}
