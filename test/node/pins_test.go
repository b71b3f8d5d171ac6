package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// While the agent is away somebody spoils its pins: some are gone, others are something else. Programs go on with the maps
// that they have, the agent makes new ones, fills them and only then replaces the programs: nobody is disturbed.
func TestPrivilegedPins_SpoiltOnesDisturbNobody(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	traffic := startTraffic(t, node, gentle())
	pod := addPod(t, node, "stays")
	before := hooks(t, node)
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(node.BPFRoot(), "waggle", "maps")
	if err := node.Do(func() error { return spoil(dir) }); err != nil {
		t.Fatal(err)
	}
	traffic.say(t, "the pins are spoilt")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventually(t, func() error {
		if hooks(t, node) == before {
			return errors.New("the hooks still carry the programs of the run before")
		}
		return nil
	})
	text, err := node.Waggle(t.Context(), "db", "show", "bpf-maps", "-o", "yaml")
	text = strings.Join(strings.Fields(text), " ") // as it was before YAML broke the lines
	for _, name := range []string{"endpoint_facts_v2", "bpf_endpoints_v1", "metrics_v1"} {
		if want := "moved to " + filepath.Join(dir, name+"_unfit"); err != nil || !strings.Contains(text, want) {
			t.Errorf("nothing says %q: %v\n%s", want, err, text)
		}
	}
	added := addPod(t, node, "new")
	pingBoth(t, pod, added)
	if err := errors.Join(added.Detach(t.Context()), pod.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	traffic.end(t)
}

// Something stands in the way of a map that only the programs need, and cannot be moved. Nobody is disturbed, pods come and go
// with the programs of the run before, and as soon as it is gone the agent goes over to its own, by itself.
func TestPrivilegedPins_OneThatCannotBeMovedHealsWithoutARestart(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	traffic := startTraffic(t, node, gentle())
	before := hooks(t, node)
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(node.BPFRoot(), "waggle", "maps", "metrics_v1")
	if err := node.Do(func() error {
		return errors.Join(os.Remove(pin), os.Mkdir(pin, 0o700), unix.Mount(node.StateDir(), pin, "", unix.MS_BIND, ""))
	}); err != nil {
		t.Fatal(err)
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	says(t, node, fmt.Sprintf("degraded: datapath generation %d", thisGeneration), pin, "cannot be moved out of the way")
	x, y := addPod(t, node, "new-x"), addPod(t, node, "new-y")
	pingBoth(t, x, y)
	if err := errors.Join(x.Check(t.Context()), x.Detach(t.Context()), y.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	if now := hooks(t, node); now != before {
		t.Errorf("the hooks carried %q, now %q", before, now)
	}
	traffic.say(t, "out of the way")
	if err := node.Do(func() error { return errors.Join(unix.Unmount(pin, 0), os.Remove(pin)) }); err != nil {
		t.Fatal(err)
	}
	awaitOtherHooks(t, node, before)
	requireGeneration(t, node, thisGeneration)
	saysNot(t, node, "degraded: datapath")
	traffic.end(t)
}

// awaitOtherHooks waits until the hooks carry other programs. The agent's next try may be a minute away, and loading takes a while.
func awaitOtherHooks(t *testing.T, node *nodekit.Node, before string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); hooks(t, node) == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the hooks still carry the programs of the run before")
		}
	}
}

func spoil(dir string) error {
	var errs []error
	// Nor is there the twin of another layout, from which the map could be made.
	for _, name := range []string{"endpoint_facts_v1", "endpoint_facts_v2", "bpf_links_v1", "bpf_endpoints_v1", "ipcache_v1", "metrics_v1"} {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	for _, name := range []string{"endpoint_facts_v2", "metrics_v1"} {
		other, err := ebpf.NewMap(&ebpf.MapSpec{Name: "other", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			return err
		}
		errs = append(errs, other.Pin(filepath.Join(dir, name)), other.Close())
	}
	if err := errors.Join(append(errs, os.Mkdir(filepath.Join(dir, "bpf_endpoints_v1"), 0o700))...); err != nil {
		return fmt.Errorf("spoil the pins: %w", err)
	}
	return nil
}
