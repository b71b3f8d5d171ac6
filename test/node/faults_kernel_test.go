package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// An agent that starts while the kernel has no memory for maps keeps the datapath of the one before: nobody is disturbed,
// pods come and go, the status says what is missing, and the agent loads its own as soon as there is memory.
func TestPrivilegedMemory_ShortKeepsTheOldDatapath(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, gentle())
	memory := withShortage(t, node)
	memory.on.Store(true)
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	says(t, node, "degraded: datapath generation 1", "free memory")
	pod := addPod(t, node, "meanwhile")
	if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56), pod.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	if memory.refused.Load() == 0 {
		t.Error("no map was asked for")
	}
	memory.on.Store(false)
	requireGeneration(t, node, 1)
	saysNot(t, node, "degraded: datapath")
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

// The first agent of a node says what it is short of, has an ADD wait, and attaches the pod when there is memory.
func TestPrivilegedMemory_ShortAtTheFirstStart(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	memory := withShortage(t, node)
	memory.on.Store(true)
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	says(t, node, "cannot allocate memory")
	pod := newPod(t, node, "web")
	attached := make(chan error, 1)
	go func() { attached <- pod.Attach(t.Context()) }()
	before := memory.refused.Load()
	eventually(t, func() error {
		if memory.refused.Load() == before {
			return errors.New("the agent does not try again")
		}
		return nil
	})
	select {
	case err := <-attached:
		t.Fatalf("ADD did not wait: %v", err)
	default:
	}
	memory.on.Store(false)
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56)); err != nil {
		t.Error(err)
	}
	waitReady(t, node)
}

// says waits until the status contains all of these words.
func says(t *testing.T, node *nodekit.Node, words ...string) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "status")
		for _, w := range words {
			if !strings.Contains(text, w) {
				return fmt.Errorf("the status does not say %q: %w\n%s", w, err, text)
			}
		}
		return nil
	})
}

func saysNot(t *testing.T, node *nodekit.Node, word string) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "status")
		if err != nil || strings.Contains(text, word) {
			return fmt.Errorf("the status: %w\n%s", err, text)
		}
		return nil
	})
}
