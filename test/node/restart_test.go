package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// The shortest proof, for machines that are too slow for the tests under full load: an agent stops, is killed, and starts again, with newly loaded programs
// each time.
func TestPrivilegedRestart_LosesNoPacket(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	traffic := startTraffic(t, node, load.Rates{Connections: 24, Messages: 48, Datagrams: 600, Connects: 12, Lies: 10})
	for _, end := range []func(context.Context) error{node.StopAgent, node.KillAgent} {
		if err := errors.Join(end(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	traffic.end(t)
}

// The agent mounts bpffs where it is missing, finds it after a restart, and pins below it.
func TestPrivilegedBPFRoot_MountedWhenMissing(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	for range 2 {
		if err := node.Do(func() error {
			var fs unix.Statfs_t
			if err := unix.Statfs(node.BPFRoot(), &fs); err != nil {
				return err
			}
			if fs.Type != unix.BPF_FS_MAGIC {
				return fmt.Errorf("%s is of type %#x", node.BPFRoot(), fs.Type)
			}
			pins, err := os.ReadDir(filepath.Join(node.BPFRoot(), "waggle", "maps"))
			if err == nil && len(pins) == 0 {
				err = errors.New("nothing is pinned")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	if mounts := bpfMounts(t, node); mounts != 1 {
		t.Errorf("%d file systems are mounted there, want 1", mounts)
	}
}

// bpfMounts returns the number of stacked mounts at the node's root of pins.
func bpfMounts(t *testing.T, node *nodekit.Node) (count int) {
	t.Helper()
	if err := node.Do(func() error {
		for {
			if err := unix.Unmount(node.BPFRoot(), unix.MNT_DETACH); err != nil {
				return nil
			}
			count++
		}
	}); err != nil {
		t.Fatal(err)
	}
	return count
}
