package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// An agent that starts while the kernel has no memory for maps keeps the datapath of the previous run: traffic is not interrupted, pods can be attached and
// detached, the status reports the shortage, and the agent loads its own datapath as soon as there is memory.
func TestPrivilegedMemory_Shortage_KeepsPreviousDatapath(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before, loaded := lasting(t, node), hooks(t, node)
	traffic := startTraffic(t, node, gentle())
	memory := withShortage(t, node)
	memory.on.Store(true)
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	awaitStatus(t, node, fmt.Sprintf("degraded: datapath generation %d", thisGeneration), "free memory")
	pod := addPod(t, node, "meanwhile")
	if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56), pod.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	if memory.denied.Load() == 0 {
		t.Error("no map was asked for")
	}
	memory.on.Store(false)
	awaitOtherHooks(t, node, loaded)
	requireGeneration(t, node, thisGeneration)
	awaitStatusWithout(t, node, "degraded: datapath")
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

// The first agent of a node reports the missing memory, lets an ADD wait, and attaches the pod when there is memory.
func TestPrivilegedMemory_ShortageAtFirstStart(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	memory := withShortage(t, node)
	memory.on.Store(true)
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, node, "cannot allocate memory")
	pod := newPod(t, node, "web")
	attached, began := make(chan error, 1), time.Now()
	go func() { attached <- pod.Attach(t.Context()) }()
	before := memory.denied.Load()
	eventually(t, func() error {
		if memory.denied.Load() == before {
			return errors.New("the agent does not try again")
		}
		return nil
	})
	select {
	case err := <-attached:
		if time.Since(began) < agentStartWait { // wall clock: the plugin waits for at least that long
			t.Fatalf("ADD did not wait: %v", err)
		}
		attached <- err
	default:
	}
	released := time.Now()
	memory.on.Store(false)
	if err := endOfADD(t.Context(), pod, began, released, attached); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56)); err != nil {
		t.Error(err)
	}
	waitReady(t, node)
}

// agentStartWait is the time for which an ADD surely waits for an agent that starts: the plugin waits for 30 s.
const agentStartWait = 25 * time.Second

// endOfADD waits for an ADD that began at a time and could end since it was released. An ADD whose timeout passed is repeated, as by a runtime, if the test
// released it late.
func endOfADD(ctx context.Context, pod *nodekit.Pod, began, released time.Time, attached <-chan error) error {
	err := <-attached
	if err != nil && time.Since(began) >= agentStartWait && time.Since(released) < agentStartWait { // wall clock: only a slower machine repeats the ADD
		err = errors.Join(pod.Detach(ctx), attach(ctx, pod))
	}
	return err
}

// awaitStatus waits until the status contains all of these words.
func awaitStatus(t *testing.T, node *nodekit.Node, words ...string) {
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

func awaitStatusWithout(t *testing.T, node *nodekit.Node, word string) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "status")
		if err != nil || strings.Contains(text, word) {
			return fmt.Errorf("the status: %w\n%s", err, text)
		}
		return nil
	})
}

// An agent without free file descriptors keeps its state: traffic is not interrupted. When the agent may open files again, pods can be attached and detached.
func TestPrivilegedDescriptors_ExhaustedAndFreed(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, gentle())
	var had unix.Rlimit
	if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, nil, &had); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", node.AgentPID()))
	if err != nil {
		t.Fatal(err)
	}
	spares := []int{0, 2, 8} // several values, so that different steps fail
	if soaks() {
		spares = []int{0, 1, 2, 4, 8}
	}
	for _, spare := range spares {
		if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open) + spare), Max: had.Max}, nil); err != nil {
			t.Fatal(err)
		}
		pod := newPod(t, node, fmt.Sprintf("short-%d", spare))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		t.Logf("with %d descriptors to spare: ADD: %v", spare, pod.Attach(ctx))
		cancel()
		if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, &had, nil); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(patiently(func() error { return pod.Detach(t.Context()) }), pod.Attach(t.Context()),
			nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56), pod.Detach(t.Context())); err != nil {
			t.Errorf("%d to spare, behind: %v", spare, err)
		}
	}
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

func isTooManyFiles(text string) bool {
	return strings.Contains(text, "too many open files") || strings.Contains(text, "eventfd failed with 24") // messages of the Go runtime
}

// An agent that cannot open enough files to start reports that and changes nothing; the next agent finds the state unchanged. In particular, it keeps pinned
// maps that it cannot open: a failure to open a map is no evidence that the map is damaged.
func TestPrivilegedDescriptors_TooFewToStart(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, gentle())
	script := filepath.Join(node.Dir, "limited-agent")
	limits := []int{8, 20, 40}
	if soaks() {
		limits = []int{8, 12, 16, 20, 24, 28, 32, 40}
	}
	for _, limit := range limits {
		text := fmt.Sprintf("#!/bin/sh\nulimit -n %d; exec %s/waggle-agent \"$@\"\n", limit, binDir)
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		node.UseAgent(script)
		if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		must := limit <= 20 // the agent cannot start with so few
		wait := 2 * time.Second
		if must {
			wait = awaitFor // upper bound: the agent ends earlier
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		err := node.WaitReady(ctx)
		cancel()
		if must && (err == nil || !isTooManyFiles(err.Error())) {
			t.Errorf("with %d descriptors: %v", limit, err)
		}
		_ = node.KillAgent(t.Context()) // it may have ended
		node.UseAgent("")
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	traffic.end(t)
	eventuallyLasting(t, node, before)
}
