package node_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

func TestPrivilegedDel_MissingObjects_Succeeds(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := settled(t, node)
	t.Run("twice", func(t *testing.T) {
		pod := addPod(t, node, "twice")
		if err := errors.Join(pod.Detach(t.Context()), pod.Detach(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Run("never attached", func(t *testing.T) {
		if err := newPod(t, node, "unknown").Detach(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("namespace missing", func(t *testing.T) {
		pod, err := node.AddPod(t.Context(), "nowhere")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(pod.Close(), pod.Detach(t.Context()), pod.Detach(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Run("no namespace given", func(t *testing.T) {
		pod := addPod(t, node, "untold")
		path := pod.NetnsPath
		pod.NetnsPath = ""
		err := pod.Detach(t.Context())
		pod.NetnsPath = path
		if err != nil {
			t.Error(err)
		}
		eventuallySame(t, node, before) // before the namespace is deleted: its deletion would delete the link as well
	})
	eventuallySame(t, node, before)
}

// The namespace is attached again at once, many times, while the deletions of earlier links are pending.
func TestPrivilegedAdd_DuringPendingDeletion(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := settled(t, node)
	pod := newPod(t, node, "again")
	other := addPod(t, node, "other")
	for range 20 {
		if err := pod.Attach(t.Context()); err != nil {
			t.Fatal(err)
		}
		pingBoth(t, pod, other)
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventuallySame(t, node, before)
}

// A runtime creates a new sandbox of a pod and sends the DEL of the old sandbox later.
func TestPrivilegedDel_OldSandbox_KeepsNewSandbox(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	old, renewed, other := addPod(t, node, "web"), addPod(t, node, "web"), addPod(t, node, "other")
	for range 2 {
		if err := old.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pingBoth(t, renewed, other)
	if err := renewed.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := nodekit.PingBriefly(other, old.Addr(false), 56); err == nil {
		t.Error("the old sandbox still answers")
	}
}

// GC deletes exactly the attachments that are not listed, with an agent and without one.
func TestPrivilegedGC_DeletesOnlyStaleAttachments(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	keep, stale := addPod(t, node, "keep"), addPod(t, node, "stale")
	collect(t, node, keep)
	requireEndpoints(t, node, 1)
	eventually(t, func() error {
		links, err := node.PodLinks()
		if err == nil && !slices.Equal(links, []string{keep.Result.Interfaces[0].Name}) {
			err = fmt.Errorf("links %v are left", links)
		}
		return err
	})
	if err := stale.Check(t.Context()); err == nil {
		t.Error("the stale attachment is whole")
	}
	later := addPod(t, node, "later")
	pingBoth(t, keep, later)

	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	collect(t, node, keep)
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	requireEndpoints(t, node, 1)
	if err := keep.Check(t.Context()); err != nil {
		t.Errorf("the attachment that was listed: %v", err)
	}
	if err := nodekit.Ping(node.Host(), keep.Addr(false), 56); err != nil {
		t.Error(err)
	}
}

// collect calls GC with the valid attachments.
func collect(t *testing.T, node *nodekit.Node, valid ...*nodekit.Pod) {
	t.Helper()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, pod := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: pod.ContainerID, IfName: pod.IfName})
	}
	if err := node.Do(func() error {
		cni, list, err := node.CNI("1.1.0")
		if err != nil {
			return err
		}
		return cni.GCNetworkList(context.Background(), list, args)
	}); err != nil {
		t.Fatalf("GC: %v", err)
	}
}

func requireEndpoints(t *testing.T, node *nodekit.Node, want int) {
	t.Helper()
	eventually(t, func() error {
		files, err := filepath.Glob(filepath.Join(node.StateDir(), "endpoints", "*.json"))
		if err != nil {
			return err
		}
		list, err := node.Waggle(t.Context(), "endpoint", "list")
		if err == nil && (len(files) != want || strings.Count(list, "default/") != want) {
			err = fmt.Errorf("%d files, want %d endpoints:\n%s", len(files), want, list)
		}
		return err
	})
}

// A second interface in a pod is rejected. The DEL that the runtime sends for it while no agent runs must not remove the first interface.
func TestPrivilegedDel_SecondInterface_KeepsFirst(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "web")
	second := *pod
	second.IfName = "net1"
	requireCNIError(t, second.Attach(t.Context()), 0, "")
	if err := errors.Join(second.Detach(t.Context()), node.StopAgent(t.Context()), second.Detach(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	requireEndpoints(t, node, 1)
	if err := errors.Join(pod.Check(t.Context()), nodekit.Ping(node.Host(), pod.Addr(false), 56)); err != nil {
		t.Error(err)
	}
}

// DELs that arrive while an agent starts are queued or answered; in both cases none is lost, and no DEL waits for long.
func TestPrivilegedDel_WhileTheAgentStarts(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := lasting(t, node)
	for range times(t, 1, 2) {
		var pods []*nodekit.Pod
		for i := range 12 {
			pods = append(pods, addPod(t, node, fmt.Sprintf("pod-%d", i)))
		}
		if err := node.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		var group errgroup.Group
		group.Go(func() error { // one after the other, from before the agent runs until after it answers
			for i, p := range pods[:8] {
				if err := p.Detach(t.Context()); err != nil {
					return err
				}
				if i == 1 {
					if err := node.StartAgent(); err != nil {
						return err
					}
				}
			}
			return nil
		})
		for _, p := range pods[8:] {
			group.Go(func() error { return p.Detach(t.Context()) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		eventuallyLasting(t, node, before)
	}
}

// Without space for the queue, DEL reports the error and still removes the link; when there is space again, DEL succeeds.
func TestPrivilegedDel_NoSpaceForTheQueue(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := lasting(t, node)
	pod := addPod(t, node, "web")
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	queue := filepath.Join(node.StateDir(), "deleteQueue")
	if err := node.Do(func() error { return unix.Mount("tmpfs", queue, "tmpfs", 0, "nr_inodes=2") }); err != nil { // inodes of the root directory and of the lock
		t.Fatal(err)
	}
	requireCNIError(t, pod.Detach(t.Context()), 11, "no space left on device")
	if err := withoutLink(pod); err != nil {
		t.Error(err)
	}
	if err := node.Do(func() error { return unix.Unmount(queue, unix.MNT_DETACH) }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pod.Detach(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventuallyLasting(t, node, before)
}

func withoutLink(pod *nodekit.Pod) error {
	return pod.Do(func() error {
		if _, err := netlink.LinkByName(pod.IfName); err == nil {
			return fmt.Errorf("%s is left in the pod", pod.IfName)
		}
		return nil
	})
}
