package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// agent measures a cold start and the resources of an idle agent.
func (b *bench) agent(ctx context.Context) error {
	var cold []time.Duration
	for range 5 {
		took, err := b.coldStart(ctx)
		if err != nil {
			return err
		}
		cold = append(cold, took)
	}
	b.report("agent start to ready, cold, p50", show(median(cold)), figures.Time(median(cold)), coldStartBudget)

	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	for i := range 100 {
		pod, err := node.AddPod(ctx, fmt.Sprintf("rest-%d", i))
		if err != nil {
			return err
		}
		defer pod.Close()
	}
	return b.atRest(node)
}

// restore measures the time from the start of the process, after a kill, until the last restored endpoint is ready.
func (b *bench) restore(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	pods := 0
	for _, count := range []int{10, 100, 250} {
		for ; pods < count; pods++ {
			pod, err := node.AddPod(ctx, fmt.Sprintf("restored-%d", pods))
			if err != nil {
				return err
			}
			defer pod.Close()
		}
		var took []time.Duration
		for range 3 {
			if err := node.KillAgent(ctx); err != nil {
				return err
			}
			one, err := startToRestored(ctx, node, count)
			if err != nil {
				return err
			}
			took = append(took, one)
		}
		b.report(fmt.Sprintf("restore of %d endpoints, start to all ready, p50", count), show(median(took)), figures.Time(median(took)), restoreBudget)
	}
	return nil
}

// startToRestored waits until the API lists count endpoints and all are ready.
func startToRestored(ctx context.Context, node *nodekit.Node, count int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return timed(func() error {
		if err := node.StartAgent(); err != nil {
			return err
		}
		for {
			list, err := node.Waggle(ctx, "endpoint", "list")
			ready := strings.Count(list, " ready ")
			if err == nil && ready == count {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d endpoints are ready: %w", ready, count, errors.Join(ctx.Err(), err))
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

func (b *bench) coldStart(ctx context.Context) (time.Duration, error) {
	node, err := nodekit.New(nodekit.Options{BinDir: b.bin, AgentArgs: []string{installedStop}})
	if err != nil {
		return 0, err
	}
	defer node.Close()
	return startToReady(ctx, node)
}

func startToReady(ctx context.Context, node *nodekit.Node) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return timed(func() error {
		if err := node.StartAgent(); err != nil {
			return err
		}
		return node.WaitReady(ctx)
	})
}

// atRest measures the agent's resident memory and CPU use while idle.
func (b *bench) atRest(node *nodekit.Node) error {
	time.Sleep(3 * time.Second)
	before, err := cpuTicks(node.AgentPID())
	if err != nil {
		return err
	}
	const window = 20 * time.Second
	time.Sleep(window)
	after, err := cpuTicks(node.AgentPID())
	if err != nil {
		return err
	}
	resident, err := residentMemory(node)
	if err != nil {
		return err
	}
	b.report("agent at rest, resident, 100 endpoints", fmt.Sprintf("%.1f MB", resident), megabytes(resident), residentBudget)
	const hertz = 100 // USER_HZ, fixed by the kernel's interface
	share := float64(after-before) / hertz / window.Seconds() * 100
	b.report("agent at rest, CPU", fmt.Sprintf("%.2f %%", share), figures.Value{Number: share, Unit: "% of a core"}, restCPUBudget)
	return nil
}

// residentMemory returns the resident set size of the agent in MB.
func residentMemory(node *nodekit.Node) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", node.AgentPID()))
	if err != nil {
		return 0, err
	}
	rss := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if rss == nil {
		return 0, fmt.Errorf("no VmRSS in the status of process %d", node.AgentPID())
	}
	kilobytes, err := strconv.Atoi(string(rss[1]))
	return float64(kilobytes) / 1024, err
}

// cpuTicks returns utime + stime of a process in ticks (proc(5), fields 14 and 15).
func cpuTicks(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return user + system, err
}

func (b *bench) sizes(context.Context) error {
	for _, program := range []struct {
		name   string
		budget figures.Limit
	}{{"waggle-agent", agentSizeBudget}, {"waggle-cni", pluginSizeBudget}, {"waggle", unlimited}} {
		info, err := os.Stat(filepath.Join(b.bin, program.name))
		if err != nil {
			return err
		}
		size := float64(info.Size()) / 1e6
		b.report("stripped size of "+program.name, fmt.Sprintf("%.1f MB", size), megabytes(size), program.budget)
	}
	return nil
}
