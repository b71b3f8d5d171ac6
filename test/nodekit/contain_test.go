package nodekit

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// asProgram is the environment variable that makes the test binary a contained program. Its value selects the program's action.
const asProgram = "NODEKIT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "":
		os.Exit(m.Run())
	case "exit 0":
		os.Exit(Contain(func() int { return 0 }))
	case "exit 7":
		os.Exit(Contain(func() int { return 7 }))
	case "wait":
		os.Exit(Contain(startAndWait))
	}
}

// startAndWait creates a file, starts a process that outlives its parent, and waits to be killed.
func startAndWait() int {
	dir, err := os.MkdirTemp("", "contained-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	child := exec.Command("sleep", "1000")
	child.Stdout = os.Stdout // keeps the pipe of the output open while the child runs
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("pid", os.Getpid(), "file", dir)
	time.Sleep(time.Hour)
	return 0
}

// program starts the test binary as a contained program; the reader returns EOF when all writers have ended.
func program(t *testing.T, does string) (*exec.Cmd, io.Reader) {
	t.Helper()
	testnet.RequirePrivileges(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"="+does)
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = read.Close() })
	if err := read.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return cmd, read
}

func TestPrivilegedContain_ReturnsTheExitCode(t *testing.T) {
	t.Parallel()
	for does, want := range map[string]int{"exit 0": 0, "exit 7": 7} {
		cmd, _ := program(t, does)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %v", does, err)
		}
	}
}

// TestPrivilegedContain_LeavesNothing kills either process with SIGKILL.
func TestPrivilegedContain_LeavesNothing(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"outside", "inside"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			cmd, output := program(t, "wait")
			lines := bufio.NewReader(output)
			line, err := lines.ReadString('\n')
			var pid int
			var dir string
			if _, scan := fmt.Sscanf(line, "pid %d file %s", &pid, &dir); scan != nil || pid != 1 {
				t.Fatalf("want the first process of a namespace, got %q: %v, %v", line, err, scan)
			}
			if err := syscall.Kill(victimOf(t, cmd.Process.Pid, victim), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := lines.ReadString('\n'); err != io.EOF {
				t.Errorf("a process still has the output: %v", err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the program says that all went well")
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is on the machine: %v", dir, err)
			}
		})
	}
}

// victimOf returns the process itself or its only child.
func victimOf(t *testing.T, pid int, which string) int {
	t.Helper()
	if which == "outside" {
		return pid
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var children string
	for _, task := range tasks { // any thread may have started it
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		if err != nil {
			t.Fatal(err)
		}
		children += string(text)
	}
	var child int
	if _, err := fmt.Sscan(strings.TrimSpace(children), &child); err != nil {
		t.Fatalf("children of %d: %q: %v", pid, children, err)
	}
	return child
}
