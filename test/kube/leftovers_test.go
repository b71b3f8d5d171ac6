package kube_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/kube"
)

// asProgram is the environment variable that makes the test binary run a cluster as a program. Its value selects how the program ends.
const asProgram = "WAGGLE_KUBE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	does := os.Getenv(asProgram)
	if does == "" {
		kube.Main(m)
	}
	os.Exit(kube.Contain(func() int {
		if err := startAndEnd(does); err != nil {
			fmt.Println("failed:", err)
			return 1
		}
		return 0
	}))
}

// startAndEnd runs a pod, prints a line when the pod runs, and ends in the given way.
func startAndEnd(does string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := kube.New(ctx, kube.Options{})
	if err != nil {
		return err
	}
	if err := errors.Join(c.Nodes[0].InstallBridge("10.0.1.0/24"), c.Nodes[0].WaitReady(ctx)); err != nil {
		return err
	}
	if err := c.RunPod(ctx, kube.Pod{Name: "pod", Node: "node-1"}); err != nil {
		return err
	}
	fmt.Println("running", os.Getenv("WAGGLE_KUBE_INSIDE"))
	switch does {
	case "stop":
		return c.Stop()
	case "panic":
		panic("on purpose")
	case "exit":
		os.Exit(0)
	}
	time.Sleep(time.Hour)
	return nil
}

// TestPrivilegedCluster_LeavesNothing kills the processes that run a cluster and compares the machine before and after. In the soak it also ends a cluster by
// Stop, a panic and an exit. The test of cmd/cluster checks only a folder and cgroups.
func TestPrivilegedCluster_LeavesNothing(t *testing.T) {
	ends := []string{"kill outside", "kill inside"}
	if os.Getenv("WAGGLE_TEST_SOAK") != "" {
		ends = append(ends, "stop", "panic", "exit")
	}
	for _, end := range ends {
		t.Run(end, func(t *testing.T) {
			tier := newTier(t)
			before := machine(t)
			cmd, output := program(t, end, tier)
			name, running := strings.CutPrefix(read(t, output), "running ")
			if !running || name == "" {
				t.Fatalf("the program says %q", name)
			}
			during := machine(t)
			if count(during, "process ") <= count(before, "process ") || len(cgroups(t, name)) == 0 {
				t.Fatalf("a running cluster does not show, with cgroups %q: this test sees nothing", cgroups(t, name))
			}
			if tier != nil && !slices.ContainsFunc(cgroups(t, name), func(dir string) bool { return filepath.Dir(dir) == tier.Name() }) {
				t.Errorf("the CPU time of the clusters is not that of the tier %s: their cgroups are %q", tier.Name(), cgroups(t, name))
			}
			victim := cmd.Process.Pid
			switch end {
			case "kill inside":
				victim = onlyChild(t, victim)
				fallthrough
			case "kill outside":
				if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			for read(t, output) != "" { // until all writers of the output have ended
			}
			_ = cmd.Wait() // the error is expected: the process was killed
			compare(t, before)
			if left := cgroups(t, name); len(left) > 0 {
				t.Errorf("cgroups are left: %q", left)
			}
		})
	}
}

// cgroups lists the cgroups of a program by their common name.
func cgroups(t *testing.T, name string) []string {
	t.Helper()
	dirs, err := kube.Cgroups(name)
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func count(facts []string, prefix string) (n int) {
	for _, f := range facts {
		if strings.HasPrefix(f, prefix) {
			n++
		}
	}
	return n
}

func machine(t *testing.T) []string {
	t.Helper()
	facts, err := kube.Machine()
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// compare waits until the machine is in its initial state: killed processes exit after a delay.
func compare(t *testing.T, before []string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		after := machine(t)
		gone := slices.DeleteFunc(slices.Clone(before), func(f string) bool { return slices.Contains(after, f) })
		left := slices.DeleteFunc(after, func(f string) bool { return slices.Contains(before, f) })
		if len(gone)+len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("gone: %s\nleft: %s", strings.Join(gone, "\n"), strings.Join(left, "\n"))
		}
	}
}

// newTier creates a cgroup like the one of a tier of test/tiers. The cleanup of the test removes the cgroup and fails if it is not empty. newTier returns nil
// on a machine with only cgroup version 2, where clusters are not below a tier.
func newTier(t *testing.T) *os.File {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut("\n"+string(own), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[2] != "cgroup2" || f[1] == "/sys/fs/cgroup" {
			continue
		}
		dir := filepath.Join(f[1], path, "waggle-tier-leaves")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
				err := os.Remove(dir)
				if err == nil {
					return
				}
				if time.Now().After(deadline) {
					t.Errorf("remove the tier's cgroup: %v", err)
					return
				}
			}
		})
		tier, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tier.Close() })
		return tier
	}
	return nil
}

// program starts the test binary as a program, in the cgroup of a tier unless tier is nil. The reader returns EOF when all writers have ended.
func program(t *testing.T, does string, tier *os.File) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asProgram+"="+does)
	cmd.Stdout = writer
	if tier != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(tier.Fd())}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = reader.Close() })
	if err := reader.SetReadDeadline(time.Now().Add(4 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(reader)
}

// read returns a line, or "" at EOF.
func read(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// onlyChild returns the single child process of pid.
func onlyChild(t *testing.T, pid int) (child int) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscan(string(text), &child) // most processes have no children
	}
	if child == 0 {
		t.Fatalf("process %d has no child", pid)
	}
	return child
}
