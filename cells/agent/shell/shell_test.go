package shell

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/shellwire"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started runs the cell with a table and with commands that panic or wait, and returns its socket.
func started(t *testing.T) (socket string, stop func() error) {
	t.Helper()
	dir := t.TempDir()
	h := hive.New(celltest.Infrastructure(), Cell,
		cell.Provide(
			func() agentconfig.Agent { return agentconfig.Agent{StateDir: dir} },
			func() shellwire.HivePrinter {
				return func(w io.Writer) error { _, err := io.WriteString(w, "cells\n"); return err }
			},
			func() upstream.ScriptCmdsOut {
				return upstream.NewScriptCmds(map[string]script.Cmd{"test/panic": script.Command(script.CmdUsage{Summary: "panic"},
					func(*script.State, ...string) (script.WaitFunc, error) { panic("ouch") })})
			},
		),
		cell.Invoke(func(db *statedb.DB) error {
			table, err := sources.NewTable(db)
			if err != nil {
				return err
			}
			txn := db.WriteTxn(table)
			_, _, err = table.Insert(txn, sources.Source{Table: "k8s-nodes", Producer: "manifests", State: sources.Synced})
			txn.Commit()
			return err
		}),
	)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		return h.Stop(log, context.Background())
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, shellwire.SocketName), stop
}

// run runs one command and returns its output.
func run(t *testing.T, socket, command string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	err := shellwire.Run(ctx, socket, command, 0, func(line string) { out.WriteString(line + "\n") })
	return out.String(), err
}

func TestShell_Reads(t *testing.T) {
	t.Parallel()
	socket, _ := started(t)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket: %v, %v", info, err)
	}
	for command, want := range map[string]string{
		"db/show sources":                 "Table       Producer    State    Since   Copy   WaitingFor\nk8s-nodes   manifests   synced   -       -      \n",
		"db/show --columns=State sources": "State\nsynced\n",
		"db/get sources k8s-nodes":        "Table       Producer    State    Since   Copy   WaitingFor\nk8s-nodes   manifests   synced   -       -      \n",
		"hive":                            "cells\n",
		"":                                "",
	} {
		if got, err := run(t, socket, command); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", command, got, err, want)
		}
	}
}

// TestShell_RejectsForbiddenCommands tests commands that the shell must not run. The names come from the engine and from statedb.
func TestShell_RejectsForbiddenCommands(t *testing.T) {
	t.Parallel()
	socket, _ := started(t)
	names := []string{"db/insert", "db/delete", "db/cmp", "hive/start", "hive/stop"}
	for name := range script.DefaultCmds() {
		if name != "help" && name != "stop" { // stop ends the session
			names = append(names, name)
		}
	}
	if !slices.Contains(names, "exec") || !slices.Contains(names, "cat") {
		t.Fatal("the engine has no exec and cat any more: look at what it has instead")
	}
	for _, name := range names {
		if out, err := run(t, socket, name+" sources x"); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("%s can be run: %q, %v", name, out, err)
		}
	}
	file := filepath.Join(t.TempDir(), "out")
	for _, command := range []string{"db/show -o " + file + " sources", "db/show --out=" + file + " sources", "db/dump -o " + file,
		"db/get --delete sources k8s-nodes", "db/list --delete=true sources k8s-nodes", "db/prefix --delete sources k"} {
		if out, err := run(t, socket, command); err == nil || !strings.Contains(err.Error(), "cannot be used") {
			t.Errorf("%s: %q, %v", command, out, err)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written")
	}
	if out, _ := run(t, socket, "db/show sources"); !strings.Contains(out, "k8s-nodes") {
		t.Error("a row was deleted")
	}
}

func TestShell_SurvivesPanicsAndLongLines(t *testing.T) {
	t.Parallel()
	socket, _ := started(t)
	if _, err := run(t, socket, "test/panic"); err == nil || !strings.Contains(err.Error(), "panicked: ouch") {
		t.Errorf("panic: %v", err)
	}
	if _, err := run(t, socket, strings.Repeat("x", shellwire.MaxLine+1)); err == nil {
		t.Error("a line without end was taken")
	}
	if _, err := run(t, socket, "db/show sources"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestShell_StopEndsWatching stops the agent while an endless command runs.
func TestShell_StopEndsWatching(t *testing.T) {
	t.Parallel()
	socket, stop := started(t)
	c, err := shellwire.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, ended := make(chan string, 10), make(chan error, 1)
	go func() { ended <- c.Run(t.Context(), "db/watch sources", 0, func(l string) { first <- l }) }()
	<-first
	if err := stop(); err != nil { // at once, see TestSession_EndsWithTheAgent
		t.Fatal(err)
	}
	<-ended // with or without an error
}

// TestSession_EndsWithTheAgent stops the agent while an endless command runs, with a client that reads and with one that does not.
func TestSession_EndsWithTheAgent(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]bool{"the client reads": true, "the client takes nothing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				wait := script.Command(script.CmdUsage{Summary: "wait"}, func(s *script.State, _ ...string) (script.WaitFunc, error) {
					return func(s *script.State) (string, string, error) { <-s.Context().Done(); return "", "", s.Context().Err() }, nil
				})
				talk := script.Command(script.CmdUsage{Summary: "talk"}, func(s *script.State, _ ...string) (script.WaitFunc, error) {
					_, err := s.LogWriter().Write([]byte("words\n"))
					return nil, err
				})
				s := &server{params: params{Log: slog.New(slog.DiscardHandler)}, engine: &script.Engine{Cmds: map[string]script.Cmd{"wait": wait, "talk": talk}}}
				near, far := net.Pipe()
				defer near.Close()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan time.Time, 1)
				go func() { s.session(ctx, pipe{far}); ended <- time.Now() }()
				if _, err := io.WriteString(near, map[bool]string{true: "wait\n", false: "talk\n"}[reads]); err != nil {
					t.Fatal(err)
				}
				if reads {
					go func() { _, _ = io.Copy(io.Discard, near) }()
				}
				time.Sleep(writeTimeout / 2)
				stopped := time.Now()
				cancel()
				if took := (<-ended).Sub(stopped); took != 0 {
					t.Errorf("the session ended %v after the agent", took)
				}
			})
		})
	}
}

// pipe is a connection for which hungUp always reports true.
type pipe struct{ net.Conn }

func (pipe) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// TestShell_ClientDisconnects_CommandEnds opens the maximum number of sessions with endless commands and disconnects them; then another client is accepted.
func TestShell_ClientDisconnects_CommandEnds(t *testing.T) {
	t.Parallel()
	socket, _ := started(t)
	for range maxSessions {
		ctx, cancel := context.WithCancel(t.Context())
		err := shellwire.Run(ctx, socket, "db/watch sources", 0, func(string) { cancel() })
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("watching: %v", err)
		}
	}
	for range 300 {
		if _, err := run(t, socket, "db/show sources"); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("sessions of clients that left are still taken")
}

// TestShell_HalfClosedClient_GetsReply tests a client that closes its sending side, such as "echo db | nc -U".
func TestShell_HalfClosedClient_GetsReply(t *testing.T) {
	t.Parallel()
	socket, _ := started(t)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "db/show sources\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(out), "synced") || !strings.HasSuffix(string(out), shellwire.EndMarker+"\n") {
		t.Errorf("%q, %v", out, err)
	}
}
