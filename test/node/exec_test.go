package node_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedNothingIsExecuted watches every mount of a node from before the agent starts. The agent starts, pods are attached and detached, the agent
// restarts: only the programs that this test runs are executed.
func TestPrivilegedNothingIsExecuted(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	watch := watchExecutables(t, node)
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	pods := []*nodekit.Pod{addPod(t, node, "a"), addPod(t, node, "b"), addPod(t, node, "c")}
	pingBoth(t, pods[0], pods[1])
	for _, pod := range pods {
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventually(t, func() error { // the command fails while a module is degraded for a moment
		_, err := node.Waggle(t.Context(), "status")
		return err
	})

	executed, err := readExecutables(watch)
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"waggle", "waggle-agent", "waggle-cni"}
	for _, path := range executed {
		if filepath.Dir(path) != binDir || !slices.Contains(ours, filepath.Base(path)) {
			t.Errorf("%s was executed", path)
		}
	}
	for _, name := range ours {
		if !slices.Contains(executed, filepath.Join(binDir, name)) {
			t.Errorf("the watch did not see %s, which this test runs: it saw %v", name, executed)
		}
	}
}

// watchExecutables watches for files that are opened for execution anywhere in the node's mount namespace.
func watchExecutables(t *testing.T, node *nodekit.Node) (fd int) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		testnet.Missing(t, "fanotify is not available (%v): run as root on a kernel with CONFIG_FANOTIFY", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := node.Do(func() error {
		mounts, err := mountPoints()
		if err != nil {
			return err
		}
		for _, mount := range mounts {
			err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, unix.FAN_OPEN_EXEC, unix.AT_FDCWD, mount)
			// Some file systems cannot be watched, such as proc; they hold no programs.
			if err != nil && mount == "/" {
				return fmt.Errorf("watch %s: %w", mount, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return fd
}

func mountPoints() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			out = append(out, fields[4])
		}
	}
	return out, nil
}

// readExecutables returns the paths that were reported so far.
func readExecutables(fd int) ([]string, error) {
	var out []string
	buffer := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read events: %w", err)
		}
		for rest := buffer[:n]; len(rest) >= unix.FAN_EVENT_METADATA_LEN; {
			var event unix.FanotifyEventMetadata
			if _, err := binary.Decode(rest, binary.NativeEndian, &event); err != nil {
				return nil, err
			}
			rest = rest[event.Event_len:]
			if event.Mask&unix.FAN_Q_OVERFLOW != 0 {
				return nil, errors.New("events were lost")
			}
			path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", event.Fd))
			_ = unix.Close(int(event.Fd))
			if err != nil {
				return nil, err
			}
			out = append(out, path)
		}
	}
}
