// Command demo demonstrates Waggle on one machine in some seconds: it creates a private node, starts the agent, attaches three pods by running the plugin as a
// container runtime does, sends packets, creates a network policy and explains its verdicts, shows dropped packets with their reasons, and removes everything
// again. With -nodes 2 it creates two nodes and an API server, and connects the pods of both nodes through the tunnel. The exit status is not 0 if a step
// fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

func main() {
	bin := flag.String("bin", "bin", "folder with waggle-agent, waggle-cni and waggle")
	nodes := flag.Int("nodes", 1, "number of nodes, 1 or 2")
	flag.Parse()
	if *nodes != 1 && *nodes != 2 {
		fmt.Fprintf(os.Stderr, "-nodes=%d: the demonstration has 1 or 2 nodes\n", *nodes)
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the demonstration makes network namespaces: run it as root")
		os.Exit(1)
	}
	os.Exit(failed(compared(*bin, *nodes)))
}

// failed prints an error and returns the exit status.
func failed(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "\nthe demonstration failed: %v\n", err)
	return 1
}

// compared runs the demonstration in a process of its own, and returns an error if the run has changed the machine.
func compared(bin string, nodes int) error {
	d := &demo{out: os.Stdout, bin: bin, start: time.Now()}
	plan := d.oneNode()
	if nodes == 2 {
		plan = d.twoNodes()
	}
	before, err := machine()
	if err != nil {
		return fmt.Errorf("read the state of the machine: %w", err)
	}
	if code := nodekit.Contain(func() int { return failed(d.run(plan)) }); code != 0 {
		os.Exit(code) // the process of the run has printed the error
	}
	if err := compareMachine(before); err != nil {
		return err
	}
	d.logf("all steps succeeded; links, routes, rules, mounts and sysctls of the machine are unchanged")
	return nil
}

// demo is the state of one run.
type demo struct {
	out   io.Writer
	bin   string
	start time.Time
	steps int
	nodes []*nodekit.Node
	pods  []*nodekit.Pod // in the order of names

	cluster *nodekit.Cluster   // nil with one node
	servers []*kubetest.Server // replicas of the API server on the loopback of each node; empty with one node
}

type step struct {
	name string
	do   func(context.Context) error
}

func (d *demo) oneNode() []step {
	return []step{
		{"make a private node: namespaces, an uplink, a Node manifest", d.makeNode},
		{"start the agent and wait until it is ready", d.startAgents},
		{"attach three pods through the CNI plugin", d.attachPods},
		{"ping between all pods, IPv4 and IPv6", d.pingPods},
		{"ping between pods and the node, both ways", d.pingNode},
		{"waggle status", d.show("status")},
		{"waggle endpoint list", d.show("endpoint", "list")},
		{"waggle ipam list", d.show("ipam", "list")},
		{"a network policy: enforced, explained, changed", d.enforce},
		{"a pod sends with a false source address: dropped, with its reason (waggle drops)", d.spoof},
		{"detach the pods: no link of a pod remains", d.detachPods},
		{"stop the agent", d.stopAgents},
	}
}

// limit is the maximum duration of a demonstration. An idle machine needs seconds.
const limit = 5 * time.Minute

func (d *demo) run(plan []step) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() { err = errors.Join(err, d.close()) }()
	for _, s := range plan {
		if err := d.step(ctx, s.name, s.do); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted, or longer than %v, at step %d, %s: %w", limit, d.steps, s.name, err)
			}
			return err
		}
	}
	return nil
}

// logf prints a line of progress with the seconds since the start.
func (d *demo) logf(format string, args ...any) {
	fmt.Fprintf(d.out, "[%5.1f s] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) step(ctx context.Context, name string, do func(context.Context) error) error {
	d.steps++
	d.logf("%2d. %s", d.steps, name)
	if err := do(ctx); err != nil {
		return fmt.Errorf("step %d, %s: %w", d.steps, name, err)
	}
	return nil
}

func (d *demo) makeNode(context.Context) error {
	n, err := nodekit.New(nodekit.Options{BinDir: d.bin})
	if err == nil {
		d.nodes = []*nodekit.Node{n}
	}
	return err
}

func (d *demo) startAgents(ctx context.Context) error {
	for _, n := range d.nodes {
		if err := n.StartAgent(); err != nil {
			return err
		}
	}
	for _, n := range d.nodes {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) attachPods(ctx context.Context) error {
	if err := d.describePods(); err != nil {
		return err
	}
	for i, name := range names {
		begin := time.Now()
		pod, err := d.nodeOf(i).AddPod(ctx, name)
		if err != nil {
			return err
		}
		d.pods = append(d.pods, pod)
		d.logf("    %-5s has %s and %s after %.1f ms", name, pod.Addr(false), pod.Addr(true), ms(begin))
	}
	return nil
}

func (d *demo) pingPods(context.Context) error {
	begin := time.Now()
	for _, from := range d.pods {
		for _, to := range d.pods {
			for _, ipv6 := range []bool{false, true} {
				if err := nodekit.Ping(from, to.Addr(ipv6), 56); err != nil {
					return fmt.Errorf("%s to %s: %w", from.Name, to.Name, err)
				}
			}
		}
	}
	d.logf("    %d pings in %.1f ms", 2*len(d.pods)*len(d.pods), ms(begin))
	return nil
}

func ms(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1e3 }

func (d *demo) pingNode(context.Context) error {
	begin := time.Now()
	for i, pod := range d.pods {
		for _, ipv6 := range []bool{false, true} {
			if err := nodekit.Ping(pod, pod.Gateway(ipv6), 56); err != nil {
				return fmt.Errorf("%s to the node: %w", pod.Name, err)
			}
			if err := nodekit.Ping(d.nodeOf(i).Host(), pod.Addr(ipv6), 56); err != nil {
				return fmt.Errorf("the node to %s: %w", pod.Name, err)
			}
		}
	}
	d.logf("    %d pings in %.1f ms", 4*len(d.pods), ms(begin))
	return nil
}

// show returns a step that runs the command waggle on the first node and prints its output, indented.
func (d *demo) show(args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		text, err := d.nodes[0].Waggle(ctx, args...)
		if err == nil && strings.TrimSpace(text) == "" {
			err = errors.New("the command printed nothing")
		}
		if err == nil {
			fmt.Fprintln(d.out, indent(text))
		}
		return err
	}
}

func (d *demo) spoof(ctx context.Context) error {
	from, to := d.pods[0], d.pods[1]
	for _, ipv6 := range []bool{false, true} {
		// The address of the third pod is valid on the node, so only a check of the sender can find the spoofed packet.
		if err := nodekit.Spoof(from, d.pods[2].Addr(ipv6), to.Addr(ipv6)); err != nil {
			return err
		}
	}
	const reason = "Invalid source ip"
	return await(ctx, func() error {
		text, err := d.nodes[0].Waggle(ctx, "drops")
		if err == nil && strings.Count(text, reason) < 2 {
			err = fmt.Errorf("no drop with the reason %q was shown:\n%s", reason, text)
		}
		if err == nil {
			fmt.Fprintln(d.out, indent(text))
		}
		return err
	})
}

func (d *demo) detachPods(ctx context.Context) error {
	for _, pod := range d.pods {
		if err := pod.Detach(ctx); err != nil {
			return err
		}
		if err := pod.Close(); err != nil {
			return err
		}
	}
	d.pods = nil
	return await(ctx, func() (err error) {
		for _, n := range d.nodes {
			links, e := n.PodLinks()
			if e == nil && len(links) > 0 {
				e = fmt.Errorf("links remain: %v", links)
			}
			err = errors.Join(err, e)
		}
		return err
	})
}

func (d *demo) stopAgents(ctx context.Context) (err error) {
	for _, n := range d.nodes {
		err = errors.Join(err, n.StopAgent(ctx))
	}
	return err
}

// await calls check until it returns nil. The error is the last one of check.
func await(ctx context.Context, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *demo) close() (err error) {
	for _, pod := range d.pods {
		err = errors.Join(err, pod.Close())
	}
	for _, s := range d.servers {
		s.Stop()
	}
	if d.cluster != nil {
		return errors.Join(err, d.cluster.Close())
	}
	for _, n := range d.nodes {
		err = errors.Join(err, n.Close())
	}
	return err
}

func indent(text string) string {
	return "          " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n          ")
}
