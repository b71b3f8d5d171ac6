package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/kube"
)

// settle is the time for work that the agent does after its start, such as the snapshot of the objects on disk.
const settle = 45 * time.Second

// measurement restarts the agent and watches it.
type measurement struct {
	cluster *kube.Cluster
	node    *kube.Node
	agent   *kube.Process
	rest    time.Duration
	sheet   *sheet
}

// measure starts the agent again and adds the rows of a situation. The budgets limit the time until pods can be attached, and the resident memory.
func (m *measurement) measure(ctx context.Context, situation string, ready, memory limit) (err error) {
	if m.agent != nil {
		if err := m.agent.Stop(); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := m.start(ctx); err != nil {
		return err
	}
	toReady := time.Since(began)
	if err := m.cluster.WaitFor(ctx, "all tables to be synced", func() error { return m.synced(ctx) }); err != nil {
		return err
	}
	inSync := time.Since(began)
	if err := m.node.WaitReady(ctx); err != nil {
		return err
	}
	if err := m.cluster.WaitFor(ctx, "the CiliumEndpoints to be written", func() error { return m.published(ctx) }); err != nil {
		return err
	}
	published := time.Since(began)
	time.Sleep(settle)
	used, err := m.watch()
	if err != nil {
		return err
	}
	m.sheet.addTime(situation+", to ready", toReady, ready)
	m.sheet.addTime(situation+", in sync", inSync, unlimited)
	m.sheet.addTime(situation+", published", published, unlimited)
	m.addUsage(situation, used, memory, unlimited)
	return nil
}

// start starts the agent and waits until pods can be attached.
func (m *measurement) start(ctx context.Context) (err error) {
	if m.agent, err = m.node.StartAgent(kube.AdminToken, "--ipam=kubernetes"); err != nil {
		return err
	}
	return m.awaitReady(ctx)
}

// restarts adds the time until pods can be attached after a restart. The maps of the previous run exist then.
func (m *measurement) restarts(ctx context.Context, what string) error {
	var took times
	for range 9 {
		if err := m.agent.Stop(); err != nil {
			return err
		}
		if err := awaitIdle(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := m.start(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	m.sheet.addTails(what, took, unlimited)
	return nil
}

// usage is the agent's use of resources.
type usage struct {
	memory, peak float64 // resident set size in MB; peak is the maximum since the agent's start
	cpu          float64 // percent of one CPU
}

func (m *measurement) addUsage(situation string, used usage, memory, cpu limit) {
	m.sheet.addMemory(situation+", resident memory", used.memory, memory)
	m.sheet.addMemory(situation+", peak of that since the start", used.peak, unlimited)
	m.sheet.addCPU(situation+", CPU", used.cpu, cpu)
}

// watch measures the agent for the duration rest.
func (m *measurement) watch() (used usage, err error) {
	before, err := cpu(m.agent.PID())
	if err != nil {
		return used, err
	}
	began := time.Now()
	time.Sleep(m.rest)
	after, err := cpu(m.agent.PID())
	if err != nil {
		return used, err
	}
	used.cpu = 100 * (after - before).Seconds() / time.Since(began).Seconds()
	if used.memory, err = resident(m.agent.PID(), "VmRSS:"); err != nil {
		return used, err
	}
	used.peak, err = resident(m.agent.PID(), "VmHWM:")
	return used, err
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

// published returns nil if every CiliumEndpoint of this node has the desired content.
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

// cpu returns the CPU time of a process, which proc_pid_stat(5) reports in clock ticks of 10 ms in fields 14 and 15.
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

// resident returns a line of a process's status in MB: VmRSS is the resident set size, VmHWM its maximum, see proc_pid_status(5).
func resident(pid int, line string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line); ok {
			kB, err := strconv.Atoi(strings.Fields(rest)[0])
			return float64(kB) / 1000, err
		}
	}
	return 0, fmt.Errorf("no line %s", line)
}
