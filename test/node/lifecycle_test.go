package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// soakEnv names the environment variable that makes a run a soak. Its value multiplies the soak's counts.
const soakEnv = "WAGGLE_TEST_SOAK"

// soak returns the factor of repetitions; `make soak` sets it to 3.
func soak(t *testing.T) int {
	t.Helper()
	text := os.Getenv(soakEnv)
	if text == "" {
		return 1
	}
	factor, err := strconv.Atoi(text)
	if err != nil || factor < 1 {
		t.Fatalf("%s=%q: want a positive number", soakEnv, text)
	}
	return factor
}

// soaks reports whether this run is a soak.
func soaks() bool { return os.Getenv(soakEnv) != "" }

// times returns the number of repetitions: few in an ordinary run, and in a soak many, multiplied by the soak's factor.
func times(t *testing.T, few, many int) int {
	t.Helper()
	if factor := soak(t); soaks() {
		return many * factor
	}
	return few
}

// oneOf selects one of several by the test's seed; a soak uses all of them.
func oneOf[T any](t *testing.T, all ...T) []T {
	t.Helper()
	if soaks() {
		return all
	}
	i := testseed.New(t).IntN(len(all))
	return all[i : i+1]
}

func TestPrivilegedAttach_ManyAtOnceLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	count := 30
	if soaks() {
		count = 100
	}
	before, running := settled(t, node), countGoroutines(t, node)

	pods := make([]*nodekit.Pod, count)
	for i := range pods {
		pod, err := node.NewPod(fmt.Sprintf("pod-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pod.Close() })
		pods[i] = pod
	}
	inParallel(t, pods, func(p *nodekit.Pod) error { return p.Attach(t.Context()) })

	seen := map[string]string{}
	for _, p := range pods {
		for _, family := range families {
			addr := p.Addr(family.ipv6).String()
			if other, taken := seen[addr]; taken {
				t.Errorf("%s and %s both have %s", other, p.Name, addr)
			}
			seen[addr] = p.Name
		}
	}
	for i, p := range pods {
		if err := nodekit.Ping(p, pods[(i+1)%count].Addr(i%2 == 0), 56); err != nil {
			t.Error(err)
		}
	}

	inParallel(t, pods, func(p *nodekit.Pod) error { return p.Detach(t.Context()) })
	eventuallySame(t, node, before)
	eventuallyGoroutines(t, node, running)
}

func TestPrivilegedAttach_ManyInARowLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	before, running := settled(t, node), countGoroutines(t, node)
	for i := range times(t, 40, 200) {
		pod := addPod(t, node, fmt.Sprintf("pod-%d", i))
		if i%20 == 0 {
			if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56)); err != nil {
				t.Fatal(err)
			}
		}
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := pod.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventuallySame(t, node, before)
	eventuallyGoroutines(t, node, running)
}

func TestPrivilegedFamilies_OneOrBoth(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]nodekit.Options{
		"IPv4 only": {IPv6CIDR: "-", AgentArgs: []string{"--enable-ipv6=false"}},
		"IPv6 only": {IPv4CIDR: "-", AgentArgs: []string{"--enable-ipv4=false"}},
		"both":      {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := startNode(t, options)
			a, b := addPod(t, node, "a"), addPod(t, node, "b")
			for _, family := range families {
				off := family.ipv6 && options.IPv6CIDR == "-" || !family.ipv6 && options.IPv4CIDR == "-"
				if addr := a.Addr(family.ipv6); addr.IsValid() == off {
					t.Errorf("%s: the pod has %v", family.name, addr)
				}
				if off {
					continue
				}
				if err := errors.Join(nodekit.Ping(a, b.Addr(family.ipv6), 56), nodekit.Ping(a, a.Gateway(family.ipv6), 56),
					nodekit.Ping(node.Host(), a.Addr(family.ipv6), 56)); err != nil {
					t.Error(err)
				}
			}
			if err := a.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPrivilegedRestart_PodsKeepAddressesAndTraffic(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	for _, end := range []func(context.Context) error{node.StopAgent, node.KillAgent} {
		list, err := node.Waggle(t.Context(), "endpoint", "list")
		if err != nil {
			t.Fatal(err)
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		pingBoth(t, a, b) // while no agent runs
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		pingBoth(t, a, b)
		eventually(t, func() error {
			again, err := node.Waggle(t.Context(), "endpoint", "list")
			if err == nil && again != list {
				err = fmt.Errorf("endpoints before:\n%s\nafter:\n%s", list, again)
			}
			return err
		})
		c := addPod(t, node, "c")
		pingBoth(t, a, c)
		if err := c.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			list, err := node.Waggle(t.Context(), "endpoint", "list")
			if err == nil && strings.Contains(list, "default/c") {
				err = fmt.Errorf("pod c is still there:\n%s", list)
			}
			return err
		})
	}
}

func pingBoth(t *testing.T, a, b *nodekit.Pod) {
	t.Helper()
	for _, family := range families {
		if err := nodekit.Ping(a, b.Addr(family.ipv6), 56); err != nil {
			t.Fatal(err)
		}
	}
}

func inParallel(t *testing.T, pods []*nodekit.Pod, do func(*nodekit.Pod) error) {
	t.Helper()
	var group errgroup.Group
	for _, p := range pods {
		group.Go(func() error { return do(p) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// leftovers returns all visible state of pods: kernel, files, tables and maps.
func leftovers(node *nodekit.Node) ([]string, error) {
	lines, err := node.Snapshot()
	if err != nil {
		return nil, err
	}
	for _, table := range []string{"endpoints", "endpoint-states", "endpoint-facts", "bpf-links", "bpf-endpoints", "attachments", "ipcache",
		"policies", "policy-entries", "named-cidrs"} {
		text, err := node.Waggle(context.Background(), "db", "show", table)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			lines = append(lines, table+": "+strings.TrimSpace(line))
		}
	}
	for _, name := range []string{"bpf_links", "bpf_endpoints", "ipcache", "policy", "policy_ranges", "cidrs"} {
		text, err := node.Waggle(context.Background(), "map", "get", name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			lines = append(lines, "map "+name+": "+strings.TrimSpace(line))
		}
	}
	return lines, nil
}

// settled waits until two consecutive scans of a node return the same state.
func settled(t *testing.T, node *nodekit.Node) (lines []string) {
	t.Helper()
	eventually(t, func() error {
		first, err := leftovers(node)
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		if lines, err = leftovers(node); err == nil && !slices.Equal(first, lines) {
			err = errors.New("the node does not settle")
		}
		return err
	})
	return lines
}

func eventuallySame(t *testing.T, node *nodekit.Node, before []string) {
	t.Helper()
	eventually(t, func() error {
		after, err := leftovers(node)
		if err != nil {
			return err
		}
		if err := nodekit.Changes(before, after); err != nil {
			return fmt.Errorf("the node has changed:\n%w", err)
		}
		return nil
	})
}
