package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// An agent is started without the state files of the previous run. It keeps the links of that run's pods, so that the next agent, which starts with the files
// again, serves the pods unchanged.
func TestPrivilegedFaults_StateFilesLostAndRestored(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--pod-link-gc-interval=200ms", "--endpoint-gc-interval=1s"}})
	add := func(name string) *nodekit.Pod {
		pod := newPod(t, node, name)
		if err := attach(t.Context(), pod); err != nil { // an ADD fails that needs a second from the link to the endpoint
			t.Fatal(err)
		}
		return pod
	}
	a, b := add("a"), add("b")
	folder := filepath.Join(node.StateDir(), "endpoints")
	err := errors.Join(node.StopAgent(t.Context()), os.Rename(folder, folder+".aside"), node.StartAgent())
	if err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	c := add("c")
	eventually(t, func() error {
		status, err := node.Waggle(t.Context(), "status", "--verbose")
		if err == nil && !strings.Contains(status, "2 pods were attached by the previous run") {
			err = errors.New("the status says nothing of the pods: " + status)
		}
		return err
	})
	if err := c.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		links, err := node.PodLinks()
		if err == nil && len(links) != 2 {
			err = fmt.Errorf("there are the links %q, want those of the two pods", links)
		}
		return err
	})
	err = errors.Join(node.StopAgent(t.Context()), os.RemoveAll(folder), os.Rename(folder+".aside", folder), node.StartAgent())
	if err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	exactly(t, node, a, b)
	pingBoth(t, a, b)
}
