package node_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedStall_CPUStarvation_NotReported leaves the agent a few percent of the CPU for a minute while pods are attached and detached: the agent has the limits of
// the release and reports no stall.
func TestPrivilegedStall_CPUStarvation_NotReported(t *testing.T) {
	if soak(t) == 1 {
		t.Skip("takes every CPU for a minute: only make soak does")
	}
	node := startNode(t, nodekit.Options{})
	addPod(t, node, "a")
	for range runtime.NumCPU() {
		spin(t)
	}
	starve(t, node.AgentPID())
	pod := newPod(t, node, "b")
	const kubelet = 5 * time.Second // the timeout of its probes
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		_ = pod.Attach(t.Context()) // it may take too long, which is not a stall
		_ = pod.Detach(t.Context())
		if code, line, err := probeWithin(kubelet, node, "/healthz"); err != nil || code != http.StatusOK {
			t.Fatalf("status %d %s: %v", code, line, err)
		}
	}
}

// starve gives all threads of a process the lowest priority; later threads inherit it.
func starve(t *testing.T, pid int) {
	t.Helper()
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = syscall.Setpriority(syscall.PRIO_PROCESS, id, 19)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// spin keeps one CPU busy until the test ends.
func spin(t *testing.T) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}
