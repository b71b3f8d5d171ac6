//go:build amd64

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// modelEnv is the environment variable of a sequence to replay, in the form in which a failure prints it.
const modelEnv = "WAGGLE_MODEL"

// Random sequences of commands of a runtime and of faults run on a node. After each sequence the state of the node equals the state of a simple model, and when
// all its pods are deleted, the state before.
func TestPrivilegedModel_RandomSequences(t *testing.T) {
	t.Parallel()
	if text := os.Getenv(modelEnv); text != "" {
		steps, err := parseSteps(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := replayed(t, steps); err != nil {
			t.Fatal(err)
		}
		return
	}
	for worker := range 2 {
		t.Run(fmt.Sprint(worker), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			m := newModel(t)
			for range times(t, 4, 12) {
				steps := randomSteps(random)
				if err := m.sequence(t.Context(), steps); err != nil {
					t.Errorf("%v\n%v", printSteps(steps), err)
					short := shortened(t, steps)
					t.Fatalf("as a short sequence, to be repeated with\n%s=%q", modelEnv, printSteps(short))
				}
			}
			t.Logf("%d steps", m.steps)
		})
	}
}

// sequenceLength is the number of steps between two comparisons.
const sequenceLength = 8

func randomSteps(random *rand.Rand) []step {
	steps := make([]step, sequenceLength)
	for i := range steps {
		steps[i] = randomStep(random)
	}
	return steps
}

// replayed runs a sequence on a new node.
func replayed(t *testing.T, steps []step) (err error) {
	t.Run("replay", func(t *testing.T) { err = newModel(t).sequence(t.Context(), steps) })
	return err
}

// shortened removes steps from a sequence as long as it still fails, for at most a minute.
func shortened(t *testing.T, steps []step) []step {
	for begin, size := time.Now(), len(steps)/2; size > 0 && time.Since(begin) < time.Minute; size /= 2 {
		for at := 0; at+size <= len(steps) && time.Since(begin) < time.Minute; {
			shorter := slices.Delete(slices.Clone(steps), at, at+size)
			if replayed(t, shorter) == nil {
				at += size
				continue
			}
			steps = shorter
		}
	}
	return steps
}

// slots is the maximum number of pods at once. A slot is a pod's name; each new sandbox in it has another container id.
const slots = 4

// model is the expected state of a node.
type model struct {
	node     *nodekit.Node
	before   []string // facts without any pod
	up       bool     // the agent runs
	pods     map[int]*nodekit.Pod
	checks   map[int]bool         // pods whose ADD went through libcni, which keeps the data that CHECK needs
	previous map[int]*nodekit.Pod // the last removed sandbox of a slot
	steps    int
}

// slowLinkGC lets an agent delete a link without an endpoint ten seconds after it appears, in the fifth scan: an ADD that needs longer between the two fails.
const slowLinkGC = "--pod-link-gc-interval=2s"

func newModel(t *testing.T) *model {
	t.Helper()
	// A range with more addresses than the quarantine holds at any time.
	node := startNode(t, nodekit.Options{IPv4CIDR: "10.244.0.0/16",
		AgentArgs: []string{slowLinkGC, "--endpoint-gc-interval=1s"}})
	return &model{node: node, before: lasting(t, node), up: true,
		pods: map[int]*nodekit.Pod{}, checks: map[int]bool{}, previous: map[int]*nodekit.Pod{}}
}

// sequence performs the steps, compares, removes all pods and compares again.
func (m *model) sequence(ctx context.Context, steps []step) error {
	for _, s := range steps {
		m.steps++
		if err := m.do(ctx, s); err != nil {
			return fmt.Errorf("step %q: %w", s, err)
		}
	}
	if err := m.start(ctx); err != nil {
		return err
	}
	if err := until(func() error { return m.compare(ctx) }); err != nil {
		return err
	}
	for _, slot := range slices.Sorted(maps.Keys(m.pods)) {
		if err := m.remove(ctx, slot, true); err != nil {
			return err
		}
	}
	return until(func() error {
		after, err := lastingNow(m.node)
		if err != nil {
			return err
		}
		if err := nodekit.Changes(m.before, after); err != nil {
			return fmt.Errorf("when all pods are gone the node differs:\n%w", err)
		}
		return nil
	})
}

// until repeats a check until it succeeds or [awaitFor] has passed, and returns its last error.
func until(check func() error) (err error) {
	for deadline := time.Now().Add(awaitFor); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return nil
		}
	}
	return err
}

func (m *model) start(ctx context.Context) error {
	if !m.up {
		if err := m.node.StartAgent(); err != nil {
			return err
		}
		m.up = true
	}
	return m.node.WaitReady(ctx)
}

// compare returns the differences between the model and tables, kernel and files.
func (m *model) compare(ctx context.Context) error {
	wanted := map[string]bool{} // addresses
	var links []string
	for _, pod := range m.pods {
		links = append(links, pod.Result.Interfaces[0].Name)
		wanted[pod.Addr(false).String()], wanted[pod.Addr(true).String()] = true, true
	}
	slices.Sort(links)
	have, err := m.node.PodLinks()
	if err != nil {
		return err
	}
	errs := []error{same("links", have, links)}
	rows, err := m.node.Waggle(ctx, "db", "show", "endpoints")
	errs = append(errs, err, m.compareRows(rows))
	addresses, err := m.node.Waggle(ctx, "ipam", "list")
	errs = append(errs, err, same("claimed addresses", claimed(addresses), slices.Sorted(maps.Keys(wanted))))
	entries, err := m.node.Waggle(ctx, "map", "get", "bpf_endpoints")
	errs = append(errs, err)
	for address := range wanted {
		if !strings.Contains(entries, address+" ") {
			errs = append(errs, fmt.Errorf("map bpf_endpoints has no %s:\n%s", address, entries))
		}
	}
	files, err := filepath.Glob(filepath.Join(m.node.StateDir(), "endpoints", "*.json"))
	if errs = append(errs, err); len(files) != len(m.pods) {
		errs = append(errs, fmt.Errorf("%d files of endpoints, want %d", len(files), len(m.pods)))
	}
	if queue, _ := filepath.Glob(filepath.Join(m.node.StateDir(), "deleteQueue", "*.delete")); len(queue) > 0 {
		errs = append(errs, fmt.Errorf("the deletion queue holds %v", queue))
	}
	for slot, pod := range m.pods {
		if m.checks[slot] {
			errs = append(errs, pod.Check(ctx))
		}
		for _, family := range families {
			errs = append(errs, nodekit.PingBriefly(m.node.Host(), pod.Addr(family.ipv6), 56))
		}
	}
	return errors.Join(errs...)
}

// compareRows requires one complete row for each pod.
func (m *model) compareRows(table string) error {
	lines := strings.Split(strings.TrimSpace(table), "\n")[1:]
	var errs []error
	for _, pod := range m.pods {
		found := slices.ContainsFunc(lines, func(line string) bool {
			fields := strings.Fields(line)
			return slices.Contains(fields, pod.ContainerID+":"+pod.IfName) && slices.Contains(fields, pod.Addr(false).String()) &&
				slices.Contains(fields, pod.Addr(true).String()) && fields[len(fields)-1] == "-"
		})
		if !found {
			errs = append(errs, fmt.Errorf("no whole endpoint of pod %s", pod.Name))
		}
	}
	if len(lines) != len(m.pods) {
		errs = append(errs, fmt.Errorf("%d endpoints, want %d", len(lines), len(m.pods)))
	}
	if len(errs) > 0 {
		errs = append(errs, errors.New(table))
	}
	return errors.Join(errs...)
}

// claimed lists the addresses of pods.
func claimed(list string) (all []string) {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[2] == "claimed" && strings.HasPrefix(fields[3], "default/") {
			all = append(all, fields[0])
		}
	}
	slices.Sort(all)
	return all
}

func same(what string, have, want []string) error {
	if slices.Equal(have, want) {
		return nil
	}
	return fmt.Errorf("%s: %v, want %v", what, have, want)
}

// collectGarbage calls GC with all pods except one.
func (m *model) collectGarbage(ctx context.Context, without int) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for slot, pod := range m.pods {
		if slot != without {
			args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: pod.ContainerID, IfName: pod.IfName})
		}
	}
	return m.node.Do(func() error {
		cni, list, err := m.node.CNI("1.1.0")
		if err != nil {
			return err
		}
		return cni.GCNetworkList(ctx, list, args)
	})
}
