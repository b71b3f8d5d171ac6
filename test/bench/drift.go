package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// repairs measures the time until the agent repairs changes of another program: each kind of damage separately if the kernel announces the change, all kinds
// together if only the comparison at each --verify-interval finds them.
func (b *bench) repairs(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	pod, err := node.AddPod(ctx, "pod") // removed with the node
	if err != nil {
		return err
	}
	links, err := node.PodLinks()
	if err != nil || len(links) != 1 {
		return fmt.Errorf("the node has the pod links %q, want one: %w", links, err)
	}
	endpoints, err := pinnedMap(node, bpf.MapEndpoints)
	if err != nil {
		return err
	}
	defer endpoints.Close()
	d := driftNode{Node: node, pod: pod, podLink: links[0], endpoints: endpoints}
	if err := b.repaired(ctx, d, announced(d), false, 5, announcedBudget); err != nil {
		return err
	}
	if err := b.repaired(ctx, d, silent(d), true, 2, silentBudget); err != nil {
		return err
	}
	return b.conflict(ctx, d)
}

// conflict measures the agent's cost when another program deletes the route to pods continuously.
func (b *bench) conflict(ctx context.Context, d driftNode) error {
	const lasts, pause = 10 * time.Second, 10 * time.Millisecond
	before, err := d.routeRepairs(ctx)
	if err != nil {
		return err
	}
	ticks, err := cpuTicks(d.AgentPID())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := d.Do(func() error {
		for ; time.Since(began) < lasts && ctx.Err() == nil; time.Sleep(pause) {
			if route, err := ownRoute(podRoute); err == nil && route != nil {
				_ = netlink.RouteDel(route) // the agent may replace the route concurrently
			}
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	after, err := d.routeRepairs(ctx)
	if err != nil {
		return err
	}
	ticksAfter, err := cpuTicks(d.AgentPID())
	if err != nil {
		return err
	}
	rate, share := float64(after-before)/took, float64(ticksAfter-ticks)/took // a tick is 10 ms
	b.report("repairs of a route that another program deletes every 10 ms", fmt.Sprintf("%.1f/s", rate), figures.Value{Number: rate, Unit: "repairs/s"}, conflictBudget)
	b.report("CPU of the agent meanwhile", fmt.Sprintf("%.1f %%", share), figures.Value{Number: share, Unit: "% of a core"}, conflictCPUBudget)
	return nil
}

// routeRepairs returns the number of route repairs by the agent.
func (d driftNode) routeRepairs(ctx context.Context) (n uint64, err error) {
	agent := agentclient.New(filepath.Join(d.StateDir(), "waggle.sock"))
	rows, err := agentclient.Rows[driftrepairs.Repair](ctx, agent, "drift-repairs")
	for _, row := range rows {
		if row.Kind == driftrepairs.Route {
			n += row.Count
		}
	}
	return n, err
}

// driftNode is a node with one pod.
type driftNode struct {
	*nodekit.Node
	pod       *nodekit.Pod
	podLink   string // its end on the node
	endpoints *ebpf.Map
}

func (d driftNode) pin(elem ...string) string {
	return filepath.Join(append([]string{d.BPFRoot(), "waggle"}, elem...)...)
}

// repaired runs rounds with all kinds of damage: one kind at a time, or all together, because each round then lasts until the next comparison.
func (b *bench) repaired(ctx context.Context, d driftNode, all []damage, together bool, rounds int, budget figures.Limit) error {
	took := make([][]time.Duration, len(all))
	var batches [][]int
	for i := range all {
		if together && i > 0 {
			batches[0] = append(batches[0], i)
		} else {
			batches = append(batches, []int{i})
		}
	}
	for range b.atMost(rounds) {
		for _, batch := range batches {
			time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond)) // repairs of one object are rate-limited
			if err := d.round(ctx, all, batch, took); err != nil {
				return err
			}
		}
	}
	for i, kind := range all {
		b.promised("repair, "+kind.what, took[i], budget)
	}
	return nil
}

// round causes several damages and records the repair time of each.
func (d driftNode) round(ctx context.Context, all []damage, batch []int, took [][]time.Duration) error {
	intact := func(i int) error {
		whole, err := all[i].whole()
		if err == nil && !whole {
			err = errors.New("it is not repaired")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", all[i].what, err)
		}
		return err
	}
	return d.Do(func() error {
		began := map[int]time.Time{}
		for _, i := range batch {
			if err := await(ctx, time.Millisecond, func() error { return intact(i) }); err != nil {
				return fmt.Errorf("before the damage: %w", err)
			}
			began[i] = time.Now()
			if err := all[i].do(); err != nil {
				return fmt.Errorf("%s: %w", all[i].what, err)
			}
		}
		return await(ctx, time.Millisecond, func() (last error) {
			for i, since := range began {
				if err := intact(i); err != nil {
					last = err
					continue
				}
				took[i] = append(took[i], time.Since(since))
				delete(began, i)
			}
			return last
		})
	})
}
