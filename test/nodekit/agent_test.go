package nodekit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// agentOf returns a node whose agent is a shell that runs a script on SIGTERM.
func agentOf(t *testing.T, script string) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir()}
	log, err := os.Create(n.path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ready := filepath.Join(n.Dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "trap '"+script+"' TERM; echo before; : > "+ready+"; while :; do sleep 0.01; done")
	cmd.Stdout = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	n.agent = p
	if _, err := os.ReadFile(ready); err != nil { // until the shell has set its trap
		t.Fatal(err)
	}
	return n
}

// A failing stop is an error that contains the log since the signal, also on an emulated CPU.
func TestStopAgent_FailsForEveryExitCodeButZero(t *testing.T) {
	for _, emulated := range []string{"", "1"} {
		t.Setenv(testnet.EmulatedEnv, emulated)
		if err := agentOf(t, "exit 0").StopAgent(t.Context()); err != nil {
			t.Errorf("exit code 0: %v", err)
		}
		for _, code := range []string{"1", "2", "143"} {
			err := agentOf(t, "echo Stopping takes long; exit "+code).StopAgent(t.Context())
			if err == nil || !strings.Contains(err.Error(), "exit status "+code+":\nStopping takes long") || strings.Contains(err.Error(), "before") {
				t.Errorf("exit code %s: %v", code, err)
			}
		}
		if err := agentOf(t, "kill -KILL $$").StopAgent(t.Context()); err == nil {
			t.Error("killed by a signal: no error")
		}
	}
}
