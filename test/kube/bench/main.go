// Command bench measures the agent on a node of a real Kubernetes: idle, with 200 pods, and with the objects of 5,000 other nodes, written directly into the
// API server, both without and with creation and deletion of pods there. It also measures the API server while 50 nodes watch those pods. Without other nodes
// it ends after the 200 pods. At the end it prints the figures of the agent with their budgets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/clusterload"
)

func main() {
	s := fullSizes
	flag.IntVar(&s.pods, "pods", s.pods, "pods on the node")
	flag.IntVar(&s.cluster.Nodes, "nodes", s.cluster.Nodes, "other nodes; 0 to end after the pods on the node")
	flag.IntVar(&s.cluster.Pods, "remote-pods", s.cluster.Pods, "pods on other nodes")
	flag.IntVar(&s.cluster.Identities, "identities", s.cluster.Identities, "identities")
	flag.IntVar(&s.cluster.Policies, "policies", s.cluster.Policies, "network policies, of which one in thirty selects a pod on the node")
	flag.IntVar(&s.cluster.Services, "services", s.cluster.Services, "services with an endpoint each")
	flag.IntVar(&s.events, "events", s.events, "pods created or deleted on other nodes, per second of the churn")
	flag.IntVar(&s.adds, "adds", 50, "pods attached one after the other, for the time of ADD")
	flag.IntVar(&s.writes, "writes", 100, "changes of a policy, for the time until packets get the new verdict")
	flag.DurationVar(&s.rest, "rest", 60*time.Second, "duration of the measurement in each situation")
	flag.DurationVar(&s.changes, "changes", 30*time.Second, "duration of the changes of pods while nodes follow them")
	strict := flag.Bool("strict", false, "exit with code 2 when a budget is missed; other sizes than the defaults have no budgets")
	flag.Parse()
	os.Exit(kube.Contain(func() int {
		rows := &sheet{log: os.Stderr}
		err := s.run(context.Background(), rows)
		return rows.finish(os.Stdout, err, *strict)
	}))
}

// cpuRequest of a pod on the node. The default of [kube.Pod] would fill two CPUs with 200 pods, and no other pod could be scheduled.
const cpuRequest = "1m"

// namespace is the namespace of the pods on the node.
const namespace = "default"

type sizes struct {
	pods, events, adds, writes int
	cluster                    clusterload.Cluster
	rest, changes              time.Duration
}

// run adds a row for each figure of the agent. It prints those of the API server, which have no budgets.
func (s sizes) run(ctx context.Context, rows *sheet) (err error) {
	c, err := kube.New(ctx, kube.Options{ClusterCIDR: kube.DualStackCIDR})
	if c != nil {
		defer func() { err = errors.Join(err, c.Stop()) }()
	}
	if err != nil {
		return err
	}
	if err := c.ApplyWaggle(ctx, "--only", "crds"); err != nil {
		return err
	}
	// The API server serves a new definition after one or two seconds. The measurement of the agent must not include this time.
	if err := c.WaitFor(ctx, "the custom resources to be served", func() error {
		_, err := c.Kubectl(ctx, "get", "ciliumnodes,ciliumendpoints,ciliumendpointslices,ciliumidentities,ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies,ciliumcidrgroups", "-A")
		return err
	}); err != nil {
		return err
	}
	m := &measurement{cluster: c, node: c.Nodes[0], rest: s.rest, sheet: rows}
	if err := awaitIdle(ctx); err != nil {
		return err
	}
	if err := m.measure(ctx, "an empty cluster", emptyReadyBudget, emptyMemoryBudget); err != nil {
		return err
	}
	if err := m.restarts(ctx, "restarts of the agent in the empty cluster, to ready"); err != nil {
		return err
	}
	empty, err := m.attached(ctx, s.adds, nil)
	if err != nil {
		return err
	}
	rows.addTails("ADD in the empty cluster", empty.adds, unlimited)
	if err := s.startPods(ctx, c); err != nil {
		return err
	}
	if err := m.measure(ctx, fmt.Sprintf("%d pods on the node", s.pods), unlimited, s.crowded(crowdedMemoryBudget)); err != nil {
		return err
	}
	if s.cluster.Nodes == 0 {
		return m.agent.Stop()
	}
	// The controller manager would mark nodes without a kubelet as unready and so write each of them repeatedly.
	if err := c.StopControllerManager(); err != nil {
		return err
	}
	began := time.Now()
	if err := s.cluster.Write(ctx, c); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "wrote the objects of %d nodes, %d pods, %d identities, %d policies and %d services in %s, with the agent running\n", s.cluster.Nodes,
		s.cluster.Pods, s.cluster.Identities, s.cluster.Policies, s.cluster.Services, time.Since(began).Round(time.Second))
	if err := m.measure(ctx, "the large cluster", unlimited, s.large(largeMemoryBudget)); err != nil {
		return err
	}
	if err := s.churn(ctx, m, empty); err != nil {
		return err
	}
	if err := m.agent.Stop(); err != nil {
		return err
	}
	return (&fanout{cluster: c, node: c.Nodes[0], load: s.cluster, time: s.changes}).run(ctx)
}

// startPods creates pods and waits until all are Ready.
func (s sizes) startPods(ctx context.Context, c *kube.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(20)
	for i := range s.pods {
		all.Go(func() error {
			name := fmt.Sprintf("bench-%03d", i)
			return c.RunPod(ctx, kube.Pod{Name: name, Labels: map[string]string{"app": name}, CPU: cpuRequest})
		})
	}
	err := all.Wait()
	fmt.Fprintf(os.Stderr, "%d pods became Ready within %s\n", s.pods, time.Since(began).Round(100*time.Millisecond))
	return err
}
