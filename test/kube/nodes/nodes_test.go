package nodes_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

const notReadyTaint = "node.cilium.io/agent-not-ready"

// TestPrivilegedNodes_Lifecycle runs the lifecycle of a cluster of three nodes. After each step it checks the clients that run continuously.
func TestPrivilegedNodes_Lifecycle(t *testing.T) {
	w := newWorld(t)
	t.Run("pods of all nodes reach each other", w.reach)
	t.Run("services with servers on other nodes", w.services)
	t.Run("beside each other", func(t *testing.T) {
		checks := &servicechecks.World{Cluster: w.Cluster, A: w.one, B: w.two}
		parallel := func(name string, test func(*testing.T)) {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
		}
		parallel("traffic policy Local", func(t *testing.T) { servicechecks.Local(t, checks) })
		parallel("affinity", func(t *testing.T) { servicechecks.Affinity(t, checks) })
		parallel("names and the API server", func(t *testing.T) { servicechecks.Names(t, checks) })
		parallel("a webhook by its ClusterIP", func(t *testing.T) { servicechecks.Webhook(t, checks, w.three, w.internal(t, w.one)[0]) })
	})
	w.talk(t)
	t.Run("policies between nodes", w.policies)
	if t.Failed() {
		return // the clients of later steps would only time out
	}
	t.Run("a node is drained, leaves and joins again", w.rejoined)
	t.Run("the DaemonSet is rolled over", w.rolledOver)
	for _, n := range w.Nodes {
		if stacks, err := n.ReadFile("/run/waggle/stall.txt"); err == nil {
			t.Errorf("an agent of %s has said that something hangs:\n%.2000s", n.Name, stacks)
		}
	}
}

// reach sends requests to the pods of other nodes from each node and its pod, and to other nodes from each pod. Other pods see a pod's own address, and other
// nodes see the address of the pod's node.
func (w *world) reach(t *testing.T) {
	for _, n := range w.Nodes {
		process, err := n.StartProcess("server", n.Tool("kube/talk"), "serve", "8080")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := process.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	for from, n := range w.servers() {
		for to, other := range w.servers() {
			if from == to {
				continue
			}
			pods := kube.BothTargets("8080", w.ips[to]...)
			w.request(t, w.PodRequester(t.Context(), from), to, w.ips[from], pods...)
			w.request(t, n.Requester(t.Context()), to, w.internal(t, n), pods...)
			w.request(t, w.PodRequester(t.Context(), from), other.Name, []string{n.IPv4, n.IPv6}, kube.BothTargets("8080", other.IPv4, other.IPv6)...)
		}
	}
}

// services sends requests to the server on the second node through its Service from all clients.
func (w *world) services(t *testing.T) {
	if err := w.Apply(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	inside, nodePort := kube.BothTargets("80", twoIPv4, twoIPv6), func(n *kube.Node) []string { return kube.BothTargets(twoPort, n.IPv4, n.IPv6) }
	for name, n := range w.servers() {
		w.request(t, w.PodRequester(t.Context(), name), "two", w.ips[name], inside...)
		own := w.internal(t, n)
		w.request(t, n.Requester(t.Context()), "two", own, inside...)
		seen := own
		if n == w.two {
			seen = kube.ServerAddresses()
		}
		w.request(t, w.OutsideRequester(t.Context()), "two", seen, nodePort(n)...)
	}
	w.request(t, w.PodRequester(t.Context(), "one"), "two", w.internal(t, w.three), nodePort(w.three)...)
}

// talk starts the clients that run until the end of the test.
func (w *world) talk(t *testing.T) {
	t.Helper()
	one, two := w.ips["one"], w.ips["two"]
	cluster, nodes := kube.Targets("tcp", "80", webIPv4, webIPv6), kube.Targets("tcp", webPort, w.two.IPv4, w.two.IPv6)
	if err := errors.Join(
		w.talking.AddPod(t.Context(), kube.Pod{Name: "client", Node: w.one.Name}, slices.Concat(cluster, direct(two))...),
		w.talking.AddPod(t.Context(), kube.Pod{Name: "client-of-nodes", Node: w.one.Name}, nodes...),
		w.talking.AddPod(t.Context(), kube.Pod{Name: "client-2", Node: w.two.Name}, slices.Concat(cluster, direct(one))...),
		w.talking.AddNode(w.one, slices.Concat(cluster, direct(two))...),
		w.talking.AddOutside(t, append(kube.Targets("tcp", webPort, w.one.IPv4, w.one.IPv6), nodes...)...),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := w.talking.WaitCounts(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.talking.Until(t, "answers", kube.AnyServer)
}

// direct returns targets for direct connections to a pod: one connection per request, and one kept connection.
func direct(ips []string) []string {
	return append(kube.Targets("tcp", "8080", ips...), kube.Targets("tcp-kept", "8080", ips...)...)
}

// rejoined drains the third node, stops it and deletes its Node; then the node registers again with another pod range.
func (w *world) rejoined(t *testing.T) {
	before, ranges := w.talking.Until(t, "answers", kube.AnyServer), w.podRanges(t)
	w.drain(t)
	if err := errors.Join(w.three.PowerOff(), w.Delete(t.Context(), "/api/v1/nodes/"+w.three.Name)); err != nil {
		t.Fatal(err)
	}
	w.talking.Until(t, "answers without a node", kube.AnyServer)
	if err := errors.Join(w.three.PowerOn(t.Context()), w.three.StartKubelet()); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the node to take pods", func() error { return w.takesPods(t) }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.WaitWaggle(t.Context()), w.three.WaitAgentReady(t.Context())); err != nil {
		t.Fatal(err)
	}
	w.tunnels(t, w.three)
	if now := w.podRanges(t); slices.Equal(now, ranges) {
		t.Fatalf("the node has the ranges %v again: this test is for others", now)
	}
	w.serve(t, kube.Server("three", w.three))
	w.reach(t)

	// The new server must run on the third node, and all clients must reach it.
	if err := w.MergePatch(t.Context(), "/apis/apps/v1/namespaces/default/deployments/web", `{"spec": {"replicas": 4}}`); err != nil {
		t.Fatal(err)
	}
	name := w.webOnThree(t)
	if err := w.talking.AddPod(t.Context(), kube.Pod{Name: "client-3", Node: w.three.Name},
		slices.Concat(kube.Targets("tcp", "80", webIPv4, webIPv6), direct(w.ips["one"]))...); err != nil {
		t.Fatal(err)
	}
	if _, err := w.talking.WaitCounts(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := w.talking.Until(t, "answers of the new server", func(answers []string) error {
		if servers := w.served(answers); len(servers) > 0 && !slices.Contains(servers, name) {
			return fmt.Errorf("no answer of %s: %v", name, answers)
		}
		return nil
	})
	w.talking.Lost(t, before, now)
	w.stillDenied(t)
}

// drain evicts all pods of the third node. The pod of its Service keeps serving until all clients use other servers, and is killed then.
func (w *world) drain(t *testing.T) {
	t.Helper()
	name := w.webOnThree(t)
	var draining errgroup.Group
	draining.Go(func() error {
		return w.WaitFor(t.Context(), "the node to be drained", func() error {
			_, err := w.Kubectl(t.Context(), "drain", w.three.Name, "--ignore-daemonsets", "--force", "--timeout=2m")
			return err
		})
	})
	w.talking.Until(t, "answers of other nodes alone", func(answers []string) error {
		if slices.Contains(w.served(answers), name) {
			return fmt.Errorf("%s answers", name)
		}
		return nil
	})
	if err := errors.Join(w.three.Kill(t.Context(), "/bin/talk serve -drain"), draining.Wait()); err != nil {
		t.Fatal(err)
	}
}

// rolledOver replaces all agents.
func (w *world) rolledOver(t *testing.T) {
	before := w.talking.Until(t, "answers", kube.AnyServer)
	old, err := w.AgentPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"restart"}, {"status", "--timeout=5m"}} {
		if _, err := w.Kubectl(t.Context(), append(append([]string{"rollout"}, args...), "-n", "kube-system", "daemonset/waggle")...); err != nil {
			t.Fatal(err)
		}
	}
	now, err := w.AgentPods(t.Context())
	if err != nil || len(now) != len(w.Nodes) || slices.ContainsFunc(now, func(pod string) bool { return slices.Contains(old, pod) }) {
		t.Fatalf("the agents were %v and are %v, %v", old, now, err)
	}
	w.talking.Lost(t, before, w.talking.Until(t, "answers with new agents", kube.AnyServer))
	w.allowed.Until(t, "answers with new agents", kube.AnyServer)
	w.stillDenied(t)
	w.reach(t)
}
