package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// When the BPF file system cannot be mounted, the agent does not start and reports the path and the cause.
func TestPrivilegedBPFRoot_CannotBeMounted(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	if err := os.WriteFile(node.BPFRoot(), []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), awaitFor)
	defer cancel()
	err := node.WaitReady(ctx)
	if err == nil || !strings.Contains(err.Error(), "the agent ended") || !strings.Contains(err.Error(), node.BPFRoot()) {
		t.Errorf("got %v", err)
	}
	_ = node.KillAgent(t.Context()) // it has ended
}

// The agent works with a BPF file system that another program remounted read-only: traffic is not interrupted, and pins stay.
func TestPrivilegedBPFRoot_ReadOnly(t *testing.T) {
	t.Parallel()
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, gentle())
	remount := func(flags uintptr) error {
		return node.Do(func() error { return unix.Mount("", node.BPFRoot(), "", unix.MS_REMOUNT|unix.MS_BIND|flags, "") })
	}
	if err := errors.Join(node.StopAgent(t.Context()), remount(unix.MS_RDONLY)); err != nil {
		t.Fatal(err)
	}
	if err := node.Do(func() error { return os.Mkdir(filepath.Join(node.BPFRoot(), "probe"), 0o700) }); !errors.Is(err, unix.EROFS) {
		t.Fatalf("want a read-only file system, got %v", err)
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	if err := errors.Join(node.KillAgent(t.Context()), remount(0), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

// An agent that finds the BPF file system unmounted mounts it and fills new maps from its files. Pod traffic is not interrupted. Packets of the node itself
// fail until the agent has started, because the program of waggle_host is detached with its pin.
func TestPrivilegedBPFRoot_UnmountedWhileAgentIsDown(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	if err := errors.Join(node.StopAgent(t.Context()), node.Do(func() error { return unix.Unmount(node.BPFRoot(), unix.MNT_DETACH) }),
		node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	pingBoth(t, a, b)
	if err := errors.Join(nodekit.Ping(node.Host(), a.Addr(false), 56), nodekit.Ping(node.Host(), a.Addr(true), 56)); err != nil {
		t.Error(err)
	}
}
