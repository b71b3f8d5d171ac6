package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// asAgent is the environment variable that makes the test binary behave as waggle-agent, so that tests can run it as a process.
const asAgent = "WAGGLE_AGENT_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	testnet.UsesMachine()
	if os.Getenv(asAgent) != "" {
		os.Unsetenv(asAgent)
		os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestRun_RejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "enable-ip4"), []byte("true"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args, environ []string
		want          string
	}{
		"unknown flag":                {[]string{"--enable-iptv4"}, nil, `unknown option "--enable-iptv4", the nearest known one is "--enable-ipv4"`},
		"unknown flag of hive":        {[]string{"hive", "--debg"}, nil, `the nearest known one is "--debug"`},
		"unknown key in a file":       {[]string{"hive", "--config-dir", dir}, nil, `/enable-ip4: unknown option "enable-ip4"`},
		"bad value of a flag":         {[]string{"--enable-ipv4=perhaps"}, nil, `--enable-ipv4: bad value "perhaps": want true or false`},
		"bad value of a variable":     {[]string{"hive"}, []string{"WAGGLE_ENABLE_IPV6=2"}, "--enable-ipv6 from WAGGLE_ENABLE_IPV6"},
		"a value that a cell rejects": {[]string{"hive", "--state-dir=relative"}, nil, `--state-dir="relative": must be an absolute path`},
		"both families off":           {[]string{"hive", "--enable-ipv4=false", "--enable-ipv6=false"}, nil, "enable at least one address family"},
		"a protection of Cilium":      {[]string{"hive", "--enable-wireguard"}, nil, "--accept-unprotected=enable-wireguard"},
		"an old key of Cilium":        {[]string{"hive", "--tunnel=geneve"}, nil, "--tunnel=geneve: is not supported: use vxlan on all nodes"},
		"an argument":                 {[]string{"start"}, nil, "start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if code := run(c.args, c.environ, &stdout, &stderr); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
				t.Errorf("stderr %q does not say %q, or stdout is not empty: %q", stderr.String(), c.want, stdout.String())
			}
		})
	}
}

func TestRun_Hive(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if code := run([]string{"hive", "--node-name=bee-1", "--enable-wireguard", "--accept-unprotected=enable-wireguard"}, nil, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	for _, want := range []string{"Cells:", "health (Health of modules and duration of start hooks)", `NodeName: (string) (len=5) "bee-1"`,
		"Start hooks:", "Stop hooks:"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output does not say %q", want)
		}
	}
}

func TestRun_Version(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if code := run([]string{"version"}, nil, &stdout, &stderr); code != 0 || !strings.HasPrefix(stdout.String(), "waggle-agent ") {
		t.Errorf("exit code %d: %q", code, stdout.String())
	}
}

func TestLockStateDir_SecondAgent_Fails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	unlock, err := lockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockStateDir(dir)
	want := fmt.Sprintf("another waggle-agent (pid %d) uses the state directory %s", os.Getpid(), dir)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("second lock: %v, want %s", err, want)
	}
	unlock()
	again, err := lockStateDir(dir)
	if err != nil {
		t.Fatalf("lock after the first agent has ended: %v", err)
	}
	again()
}

// process starts the agent as a process in separate namespaces.
func process(t *testing.T, dir string) (cmd *exec.Cmd, log *os.File) {
	t.Helper()
	cmd, log = command(t, dir, dir+"/state")
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, log
}

// command returns the command that runs the agent in a separate mount namespace.
func command(t *testing.T, dir, state string) (cmd *exec.Cmd, log *os.File) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make namespaces; run as root")
	}
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("log-%s", rand.Text())))
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0], "--state-dir", state, "--bpf-root", dir+"/bpf", "--node-name", "bee-1")
	cmd.Env = []string{asAgent + "=1"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd, log
}

func read(t *testing.T, log *os.File) string {
	t.Helper()
	b, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func await(t *testing.T, log *os.File, words string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(read(t, log), words); {
		if time.Now().After(deadline) {
			t.Fatalf("the agent did not say %q:\n%s", words, read(t, log))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPrivilegedAgent_StartsAloneAndStopsInTime(t *testing.T) {
	dir := t.TempDir()
	agent, log := process(t, dir)
	await(t, log, "Started hive")

	second, secondLog := process(t, dir)
	if err := second.Wait(); err == nil {
		t.Error("a second agent ran on the same state directory")
	}
	if got := read(t, secondLog); !strings.Contains(got, fmt.Sprintf("another waggle-agent (pid %d)", agent.Process.Pid)) {
		t.Errorf("the second agent said:\n%s", got)
	}

	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil { // if the timeout cuts the stop short, the exit code differs
		t.Errorf("%v:\n%s", err, read(t, log))
	}
}

// Two agents in one network namespace would share maps, links and routes, also with two state directories.
func TestPrivilegedAgent_OneInNetworkNamespace(t *testing.T) {
	dir := t.TempDir()
	first, firstLog := command(t, dir, dir+"/one")
	second, secondLog := command(t, dir, dir+"/two")
	first.SysProcAttr.Pdeathsig, second.SysProcAttr.Pdeathsig = 0, 0 // the thread in the network namespace ends
	ns := testnet.New(t)
	start := func(cmd *exec.Cmd) {
		t.Helper()
		ns.Do(func() {
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		})
	}
	start(first)
	await(t, firstLog, "Started hive")
	start(second)
	if await(t, secondLog, "waggle-agent"); strings.Contains(read(t, secondLog), "Starting waggle-agent") {
		t.Fatal("a second agent started in the network namespace")
	}
	_ = second.Wait()
	want := fmt.Sprintf("another waggle-agent (pid %d) runs in this network namespace: stop it", first.Process.Pid)
	if got := read(t, secondLog); second.ProcessState.ExitCode() != 1 || !strings.Contains(got, want) {
		t.Errorf("%v, want %s; the second agent said:\n%s", second.ProcessState, want, got)
	}
	if _, err := os.Stat(dir + "/two"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the second agent has a state directory: %v", err)
	}
}

func TestAwaitStop_StopAtDeadline_IsClean(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, c := range map[string]struct {
		stopped, again, late bool
		want                 int
	}{
		"in time":                      {stopped: true},
		"at the limit":                 {stopped: true, late: true},
		"with a second signal":         {stopped: true, again: true},
		"not":                          {late: true, want: 1},
		"no stop, and a second signal": {again: true, want: 143},
	} {
		for range 50 {
			done, signals, late := make(chan struct{}), make(chan os.Signal, 1), make(chan time.Time, 1)
			if c.stopped {
				close(done)
			}
			if c.again {
				signals <- syscall.SIGTERM
			}
			if c.late {
				late <- time.Now()
			}
			if code := awaitStop(log, done, signals, late); code != c.want {
				t.Fatalf("stopped %s: exit code %d, want %d", name, code, c.want)
			}
		}
	}
}
