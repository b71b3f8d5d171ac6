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

// While the agent does not run, its pins are damaged: some are deleted, others are replaced by other objects. Programs keep running with their maps, the agent
// creates new maps, fills them and only then replaces the programs, so traffic is not interrupted.
func TestPrivilegedPins_CorruptPins_DoNotDisruptTraffic(t *testing.T) {
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
	traffic.logf(t, "the pins are spoilt")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventually(t, func() error {
		if hooks(t, node) == before {
			return errors.New("the hooks still carry the programs of the previous run")
		}
		return nil
	})
	text, err := node.Waggle(t.Context(), "db", "show", "bpf-maps", "-o", "yaml")
	text = strings.Join(strings.Fields(text), " ") // joins the lines that YAML has broken
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

// A pin of a map that only the programs need is blocked by an object that cannot be moved. Traffic is not interrupted, and pods are attached and detached with
// the programs of the previous run. As soon as the object is removed, the agent replaces the programs by itself.
func TestPrivilegedPins_BlockedPin_RecoversWithoutRestart(t *testing.T) {
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
	awaitStatus(t, node, fmt.Sprintf("degraded: datapath generation %d", thisGeneration), pin, "its pin cannot be renamed")
	x, y := addPod(t, node, "new-x"), addPod(t, node, "new-y")
	pingBoth(t, x, y)
	if err := errors.Join(x.Check(t.Context()), x.Detach(t.Context()), y.Detach(t.Context())); err != nil {
		t.Error(err)
	}
	if now := hooks(t, node); now != before {
		t.Errorf("the hooks carried %q, now %q", before, now)
	}
	traffic.logf(t, "out of the way")
	if err := node.Do(func() error { return errors.Join(unix.Unmount(pin, 0), os.Remove(pin)) }); err != nil {
		t.Fatal(err)
	}
	awaitOtherHooks(t, node, before)
	requireGeneration(t, node, thisGeneration)
	awaitStatusWithout(t, node, "degraded: datapath")
	traffic.end(t)
}

// awaitOtherHooks waits until the hooks run other programs. The agent's next try may be a minute away, and loading takes some time.
func awaitOtherHooks(t *testing.T, node *nodekit.Node, before string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); hooks(t, node) == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the hooks still carry the programs of the previous run")
		}
	}
}

func spoil(dir string) error {
	var errs []error
	// The map of another layout, from which the map could be rebuilt, is removed as well.
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
