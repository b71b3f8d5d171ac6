package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// containerCapabilities are the capabilities of the DaemonSet's container.
const containerCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_PERFMON | 1<<unix.CAP_BPF

// TestPrivilegedReducedCapabilities_Suffice runs the agent with the capabilities of its container only: pods are attached and detached, also over a restart
// that reuses pinned maps and links, and after SIGKILL.
func TestPrivilegedReducedCapabilities_Suffice(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{Reduced: true})
	wantCapabilities(t, node.AgentPID(), containerCapabilities)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	pingBoth(t, a, b)
	for i, end := range []func() error{func() error { return node.StopAgent(t.Context()) }, func() error { return node.KillAgent(t.Context()) }} {
		if err := errors.Join(end(), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		pingBoth(t, a, b)
		c := addPod(t, node, fmt.Sprint("c", i))
		pingBoth(t, c, a)
		for _, family := range families {
			if err := nodekit.Ping(node.Host(), c.Addr(family.ipv6), 64); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(c.Check(t.Context()), c.Detach(t.Context())); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(a.Detach(t.Context()), b.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		links, err := node.PodLinks()
		if err == nil && len(links) > 0 {
			err = fmt.Errorf("links are left: %v", links)
		}
		return err
	})
	for line := range strings.Lines(node.AgentLog()) {
		if strings.Contains(line, "operation not permitted") || strings.Contains(line, "permission denied") {
			t.Errorf("the agent lacks a right: %s", line)
		}
	}
	eventually(t, func() error { // a degradation by a missing capability persists
		health, err := node.Waggle(t.Context(), "db", "show", "health")
		if err == nil && strings.Contains(health, "Degraded") {
			err = fmt.Errorf("health:\n%s", health)
		}
		return err
	})
}

// TestPrivilegedAgent_DropsCapabilities starts the agent with all of root's capabilities, as systemd does.
func TestPrivilegedAgent_DropsCapabilities(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	wantCapabilities(t, node.AgentPID(), containerCapabilities)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	pingBoth(t, a, b)
}

// wantCapabilities requires every thread of a process to have exactly these capabilities, without a possibility to get another.
func wantCapabilities(t *testing.T, pid int, want uint64) {
	t.Helper()
	eventually(t, func() error { // capabilities are dropped after the start of all cells, shortly after the API is available
		statuses, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(statuses) < 2 {
			return fmt.Errorf("threads of the agent: %v, %w", statuses, err)
		}
		var errs []error
		for _, path := range statuses {
			text, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // the thread has ended
			}
			errs = append(errs, err, only(want, path, string(text)))
		}
		return errors.Join(errs...)
	})
}

func only(capabilities uint64, path, status string) error {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		want, known := map[string]uint64{"CapInh": 0, "CapPrm": capabilities, "CapEff": capabilities, "CapBnd": capabilities, "CapAmb": 0}[name]
		if got, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); known && (err != nil || got != want) {
			return fmt.Errorf("%s: %s is %s, want %016x", path, name, strings.TrimSpace(value), want)
		}
	}
	return nil
}
