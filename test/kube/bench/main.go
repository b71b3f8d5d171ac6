// Command bench measures the agent on a node of a real Kubernetes: at rest, with 200 pods, and with the objects of 5,000
// nodes and 20,000 pods elsewhere written straight into the API server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/load"
)

func main() {
	s := sizes{}
	flag.IntVar(&s.pods, "pods", 200, "pods on the node")
	flag.IntVar(&s.cluster.Nodes, "nodes", 5000, "nodes elsewhere")
	flag.IntVar(&s.cluster.Pods, "remote-pods", 20000, "pods elsewhere")
	flag.IntVar(&s.cluster.Identities, "identities", 2000, "identities of the pods elsewhere")
	flag.DurationVar(&s.rest, "rest", 60*time.Second, "how long the agent is watched at rest")
	flag.Parse()
	s.cluster.Namespace = "default"
	os.Exit(kube.Contain(func() int {
		if err := s.run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return 1
		}
		return 0
	}))
}

type sizes struct {
	pods    int
	cluster load.Cluster
	rest    time.Duration
}

func (s sizes) run(ctx context.Context) (err error) {
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
	// The API server serves a new definition after a second or two, which are no time of the agent.
	if err := c.WaitFor(ctx, "the custom resources to be served", func() error {
		_, err := c.Kubectl(ctx, "get", "ciliumnodes,ciliumendpoints,ciliumidentities,ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies,ciliumcidrgroups", "-A")
		return err
	}); err != nil {
		return err
	}
	n := c.Nodes[0]
	m := &measurement{cluster: c, node: n, rest: s.rest}
	fmt.Printf("%-44s %10s %10s %10s %10s %10s\n", "situation", "to ready", "in sync", "published", "memory", "CPU")
	if err := m.measure(ctx, "an empty cluster"); err != nil {
		return err
	}
	if err := s.startPods(ctx, c); err != nil {
		return err
	}
	if err := m.measure(ctx, fmt.Sprintf("%d pods on the node", s.pods)); err != nil {
		return err
	}
	// The controller manager would mark nodes without a kubelet and so write each of them again and again.
	if err := c.StopControllerManager(); err != nil {
		return err
	}
	began := time.Now()
	if err := s.cluster.Write(ctx, c.Config()); err != nil {
		return err
	}
	fmt.Printf("(the objects were written in %s, with the agent running)\n", time.Since(began).Round(time.Second))
	return m.measure(ctx, fmt.Sprintf("and %d nodes, %d pods elsewhere", s.cluster.Nodes, s.cluster.Pods))
}

// startPods starts pods and waits until all are Ready.
func (s sizes) startPods(ctx context.Context, c *kube.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(20)
	for i := range s.pods {
		all.Go(func() error { return c.RunPod(ctx, kube.Pod{Name: fmt.Sprintf("bench-%03d", i)}) })
	}
	err := all.Wait()
	fmt.Printf("(%d pods became Ready within %s)\n", s.pods, time.Since(began).Round(100*time.Millisecond))
	return err
}

// settle is how long an agent has for what its start leaves to do, among that the copy of the objects on disk.
const settle = 45 * time.Second

// measurement restarts the agent and watches it.
type measurement struct {
	cluster *kube.Cluster
	node    *kube.Node
	agent   *kube.Process
	rest    time.Duration
}

func (m *measurement) measure(ctx context.Context, situation string) (err error) {
	if m.agent != nil {
		if err := m.agent.Stop(); err != nil {
			return err
		}
	}
	began := time.Now()
	if m.agent, err = m.node.StartAgent(kube.AdminToken, "--ipam=kubernetes"); err != nil {
		return err
	}
	if err := m.node.WaitAgentReady(ctx); err != nil {
		return err
	}
	ready := time.Since(began)
	if err := m.cluster.WaitFor(ctx, "all tables to be synced", func() error { return m.synced(ctx) }); err != nil {
		return err
	}
	synced := time.Since(began)
	if err := m.node.WaitReady(ctx); err != nil {
		return err
	}
	if err := m.cluster.WaitFor(ctx, "the CiliumEndpoints to be written", func() error { return m.published(ctx) }); err != nil {
		return err
	}
	published := time.Since(began)
	time.Sleep(settle)
	before, err := cpu(m.agent.PID())
	if err != nil {
		return err
	}
	time.Sleep(m.rest)
	after, err := cpu(m.agent.PID())
	if err != nil {
		return err
	}
	memory, err := resident(m.agent.PID())
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %10s %10s %10s %7.1f MB %8.2f %%\n", situation, ready.Round(time.Millisecond), synced.Round(time.Millisecond), published.Round(time.Millisecond),
		memory, 100*(after-before).Seconds()/m.rest.Seconds())
	return nil
}

func (m *measurement) synced(ctx context.Context) error {
	out, err := m.node.Waggle(ctx, "db", "show", "sources")
	if err != nil {
		return err
	}
	for _, state := range []string{"waiting", "snapshot"} {
		if strings.Contains(out, state) {
			return fmt.Errorf("not all is synced:\n%s", out)
		}
	}
	return nil
}

// published wants every CiliumEndpoint of this node to be what it should.
func (m *measurement) published(ctx context.Context) error {
	out, err := m.node.Waggle(ctx, "db", "show", "desired-ciliumendpoints")
	if err != nil {
		return err
	}
	rows := strings.Count(out, "\n") - 1
	if done := strings.Count(out, "Done"); done < rows {
		return fmt.Errorf("%d of %d are written", done, rows)
	}
	return nil
}

// cpu is the processor time that a process has used, in clock ticks of 10 ms: fields 14 and 15 of proc_pid_stat(5).
func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const tick = 10 * time.Millisecond
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick, err
}

// resident is the resident memory of a process in MB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kB, err := strconv.Atoi(strings.Fields(rest)[0])
			return float64(kB) / 1000, err
		}
	}
	return 0, errors.New("no line VmRSS")
}
