//go:build amd64

package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// pointsInTest is the number of points of death that `make test` covers, chosen by its seed; `make soak` covers all.
const pointsInTest = 2

// points lists the points to test of 1 to n. The last point is behind the last call, where nothing is killed.
func points(t *testing.T, n int) (all []int) {
	t.Helper()
	if n == 0 {
		t.Fatal("the process made no call that changes something")
	}
	for k := range n {
		all = append(all, k+1)
	}
	if soaks() {
		return all
	}
	random := testseed.New(t)
	random.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(n, pointsInTest)]
	slices.Sort(all)
	return all
}

// wholePlugin counts the calls of an undisturbed ADD and DEL.
func wholePlugin(t *testing.T, node *nodekit.Node) (add, del traceReport) {
	t.Helper()
	pod := newPod(t, node, "whole")
	add, err := tracePlugin(node, pod, "ADD", traceRule{})
	if err != nil {
		t.Fatal(err)
	}
	if del, err = tracePlugin(node, pod, "DEL", traceRule{}); err != nil {
		t.Fatal(err)
	}
	return add, del
}

// The plugin is killed before each call of ADD and of DEL that changes state; then the runtime sends DEL. No state remains, and the next ADD succeeds in the
// same namespace.
func TestPrivilegedCrash_PluginAtEachCall(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := lasting(t, node)
	add, del := wholePlugin(t, node)
	for _, c := range []struct {
		command string
		whole   traceReport
	}{{"ADD", add}, {"DEL", del}} {
		for _, at := range points(t, len(c.whole.Calls)) {
			name := fmt.Sprintf("%s, call %d, %s", c.command, at, c.whole.Calls[at-1])
			pod := newPod(t, node, "killed")
			if err := prepare(t, pod, c.command); err != nil {
				t.Fatalf("%s: before: %v", name, err)
			}
			requireKilled(t, node, pod, c.command, at)
			if err := pod.Detach(t.Context()); err != nil {
				t.Errorf("%s: DEL: %v", name, err)
			}
			if err := withoutLink(pod); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			t.Log(name)
			eventuallyLasting(t, node, before)
			if err := errors.Join(pod.Attach(t.Context()), pod.Check(t.Context()), pod.Detach(t.Context())); err != nil {
				t.Errorf("%s: attach again: %v", name, err)
			}
		}
	}
	eventuallyLasting(t, node, before)
	requireNothingClaimed(t, node)
}

// requireKilled runs the plugin and kills it before a call. The number of calls may be smaller than in the counted run, because the plugin may poll the kernel
// less often; then the plugin ends before that call.
func requireKilled(t *testing.T, node *nodekit.Node, pod *nodekit.Pod, command string, at int) {
	t.Helper()
	report, err := tracePlugin(node, pod, command, traceRule{At: at})
	if report.Acted == (err == nil) {
		t.Errorf("%s, call %d: killed: %v, but it ended with %v", command, at, report.Acted, err)
	}
}

// killADDBeforePut kills the ADD of a pod at a call, or one before it, where the pod has its link and no endpoint. The threads of two runs do not make their
// calls in the same order.
func killADDBeforePut(t *testing.T, node *nodekit.Node, at int) *nodekit.Pod {
	t.Helper()
	for ; at > 0; at-- {
		pod := newPod(t, node, fmt.Sprint("killed-", at))
		requireKilled(t, node, pod, "ADD", at)
		text, err := node.Waggle(t.Context(), "endpoint", "list", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		if withoutLink(pod) != nil && !strings.Contains(text, pod.ContainerID) {
			return pod
		}
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("at no call is there a link without an endpoint")
	return nil
}

// prepare creates the state on which the command acts.
func prepare(t *testing.T, pod *nodekit.Pod, command string) error {
	if command == "ADD" {
		return nil
	}
	return pod.Attach(t.Context())
}

// The plugin is killed as above, but the runtime sends no DEL: it removes the namespace, or does nothing. The agent's own reconciliation removes the remains.
func TestPrivilegedCrash_PluginWithoutDEL(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{slowLinkGC, "--endpoint-gc-interval=1s"}})
	before := lasting(t, node)
	add, del := wholePlugin(t, node)
	for _, c := range []struct {
		command string
		whole   traceReport
	}{{"ADD", add}, {"DEL", del}} {
		for _, at := range points(t, len(c.whole.Calls)) {
			pod, err := node.NewPod(fmt.Sprintf("forgotten-%s-%d", c.command, at))
			if err != nil {
				t.Fatal(err)
			}
			if err := prepare(t, pod, c.command); err != nil {
				t.Fatal(err)
			}
			requireKilled(t, node, pod, c.command, at)
			if err := pod.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	eventuallyLasting(t, node, before)
	requireNothingClaimed(t, node)
}

// A link of Waggle without an endpoint is deleted from a namespace that stays. The agent with an interval of 0 starts when no ADD is running, because an ADD
// may need longer from its link to its endpoint than that agent waits.
func TestPrivilegedCrash_LinkWithoutEndpoint_IsDeleted(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--pod-link-gc-interval=0"}})
	before := lasting(t, node)
	living := addPod(t, node, "living")
	add, _ := wholePlugin(t, node)
	put := slices.Index(add.Calls, "write result") // from there back to where the plugin connects to send PUT /endpoint
	for put > 0 && add.Calls[put-1] != "connect" {
		put--
	}
	killed, deleted := killADDBeforePut(t, node, put), addPod(t, node, "deleted")
	if _, err := node.Waggle(t.Context(), "endpoint", "delete", "pod-name:default/deleted"); err != nil { // its link stays up
		t.Fatal(err)
	}
	for _, pod := range []*nodekit.Pod{killed, deleted} {
		if withoutLink(pod) == nil {
			t.Error("a link that no endpoint has is gone before anybody looks")
		}
	}
	node.AddAgentArgs("--pod-link-gc-interval=200ms")
	if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return errors.Join(withoutLink(killed), withoutLink(deleted)) })
	if err := errors.Join(living.Check(t.Context()), nodekit.Ping(node.Host(), living.Addr(false), 56), living.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	eventuallyLasting(t, node, before)
}
