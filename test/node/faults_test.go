package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// With a full disk, the agent rejects new pods with an error that names the cause, keeps existing pods, allows their DEL, and leaks nothing.
func TestPrivilegedFaults_NoSpaceInTheStateDirectory(t *testing.T) {
	t.Parallel()
	node := newNode(t, quickly)
	node.AddAgentArgs("--verify-interval=1s")
	if err := errors.Join(os.MkdirAll(node.StateDir(), 0o755), node.Do(func() error {
		return unix.Mount("none", node.StateDir(), "tmpfs", 0, "size=1m")
	}), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	before := settled(t, node)
	filler := filepath.Join(node.StateDir(), "filler")
	full := node.Do(func() error {
		for chunk := make([]byte, 4096); ; {
			file, err := os.OpenFile(filler, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = file.Write(chunk)
			_ = file.Close()
			if err != nil {
				return err
			}
		}
	})
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatal(full)
	}
	for range 3 {
		requireAttachFails(t, node, "no space left on device")
	}
	awaitStatus(t, node, "no pod can be attached", "no space left on device")
	pingBoth(t, a, b)
	if err := b.Detach(t.Context()); err != nil {
		t.Errorf("DEL on a full disk: %v", err)
	}
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	exactly(t, node, a)
	if err := node.Do(func() error { return os.Remove(filler) }); err != nil {
		t.Fatal(err)
	}
	awaitStatusWithout(t, node, "no pod can be attached")
	if err := b.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	pingBoth(t, a, b)
	exactly(t, node, a, b)
	eventually(t, func() error { // b has another link and other addresses, but nothing is duplicated or left of rejected pods
		after, err := leftovers(node)
		if err == nil && len(after) != len(before) {
			err = nodekit.Changes(before, after)
		}
		return err
	})
}

// requireAttachFails tries to attach a pod and requires an error with the cause and a successful rollback.
func requireAttachFails(t *testing.T, node *nodekit.Node, why string) {
	t.Helper()
	pod, err := node.NewPod("refused")
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := pod.Attach(ctx); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "could not be undone") {
		t.Errorf("ADD: %v; want %q", err, why)
	}
}

// A state directory that cannot be written is still read.
func TestPrivilegedFaults_ReadOnlyStateDirectory(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	folders := []string{filepath.Join(node.StateDir(), "endpoints"), filepath.Join(node.StateDir(), "ipam")}
	for _, folder := range folders {
		if err := node.Do(func() error {
			return errors.Join(unix.Mount(folder, folder, "", unix.MS_BIND, ""),
				unix.Mount("", folder, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}); err != nil {
			t.Fatal(err)
		}
	}
	requireAttachFails(t, node, "read-only file system")
	node.AddAgentArgs("--verify-interval=1s")
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return nodekit.PingBriefly(a, b.Addr(false), 56) })
	exactly(t, node, a, b)
	awaitStatus(t, node, "no pod can be attached", "read-only file system")
	requireAttachFails(t, node, "read-only file system")
	if err := b.Detach(t.Context()); err != nil {
		t.Errorf("DEL must not fail for a file: %v", err)
	}
	exactly(t, node, a)
	for _, folder := range folders {
		if err := node.Do(func() error { return unix.Unmount(folder, unix.MNT_DETACH) }); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { // now the file is removed as well
		files, err := filepath.Glob(filepath.Join(folders[0], "*.json"))
		if err == nil && len(files) != 1 {
			err = fmt.Errorf("there are %d state files", len(files))
		}
		return err
	})
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	exactly(t, node, a)
}

// The state directory is emptied under a running agent. The agent writes the state that its successor needs again.
func TestPrivilegedFaults_StateDirectoryRemovedWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--verify-interval=1s"}})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	folder := filepath.Join(node.StateDir(), "endpoints")
	if err := errors.Join(os.RemoveAll(folder), os.RemoveAll(filepath.Join(node.StateDir(), "ipam"))); err != nil {
		t.Fatal(err)
	}
	c := addPod(t, node, "c") // does not wait for the repair
	eventually(t, func() error {
		files, err := filepath.Glob(filepath.Join(folder, "*.json"))
		if err == nil && len(files) != 3 {
			err = fmt.Errorf("there are %d state files", len(files))
		}
		return err
	})
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	exactly(t, node, a, b, c)
	pingBoth(t, a, c)
}

// A corrupt state file keeps its addresses allocated over restarts, is reported, and is removed by the DEL of its pod.
func TestPrivilegedFaults_CorruptStateFile(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	pod, other := addPod(t, node, "a"), addPod(t, node, "b")
	if err := node.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	corrupted := 0
	files, err := filepath.Glob(filepath.Join(node.StateDir(), "endpoints", "*.json"))
	for _, file := range files {
		content, readErr := os.ReadFile(file)
		if readErr == nil && strings.Contains(string(content), pod.ContainerID) {
			corrupted++
			readErr = os.WriteFile(file, content[:len(content)-20], 0o600)
		}
		err = errors.Join(err, readErr)
	}
	if err != nil || corrupted != 1 {
		t.Fatalf("%d files are spoilt, %v", corrupted, err)
	}
	for range 2 {
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		inQuarantine(t, node, pod, "its state file is damaged")
		held(t, node, pod)
		if err := node.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	if err := pod.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	exactly(t, node, other)
}

// An agent without file descriptors rejects pods or is slow, and recovers: nothing remains of rejected pods.
func TestPrivilegedFaults_FileDescriptorLimit(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	before := settled(t, node)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", node.AgentPID()))
	if err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	var starved []*nodekit.Pod
	failed := 0
	for headroom := 3; failed == 0; headroom-- { // descriptors for connections, and fewer in each round for the work on their requests
		few := unix.Rlimit{Cur: uint64(len(fds) + headroom), Max: was.Max}
		if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, &few, nil); err != nil {
			t.Fatal(err)
		}
		pod, err := node.NewPod(fmt.Sprintf("starved-%d", headroom+9))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pod.Close() })
		starved = append(starved, pod)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := pod.Attach(ctx); err != nil {
			t.Logf("with room for %d: %v", headroom, err)
			failed++
		}
		cancel()
	}
	pingBoth(t, a, b)
	if err := unix.Prlimit(node.AgentPID(), unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	for _, pod := range starved {
		if err := pod.Detach(t.Context()); err != nil {
			t.Error(err)
		}
	}
	exactly(t, node, a, b)
	eventuallySame(t, node, before)
}
