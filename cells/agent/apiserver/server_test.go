package apiserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/hive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLock counts the releases of the deletion queue's lock.
type fakeLock struct{ released int }

func (l *fakeLock) Release() { l.released++ }

// serving starts the cell's listener in its own hive, with the handler of a fixture.
func serving(t *testing.T, f *fixture) (h *upstream.Hive, socket string, lock *fakeLock) {
	t.Helper()
	dir := t.TempDir()
	lock = &fakeLock{}
	h = hive.New(celltest.Infrastructure(), cell.Module("api-server", "REST API under test",
		cell.Config(DefaultConfig),
		cell.Provide(func() (http.Handler, agentconfig.Agent, endpoint.QueueLock) {
			return f.handler, agentconfig.Agent{StateDir: dir}, lock
		}),
		cell.Invoke(register),
	))
	return h, filepath.Join(dir, "waggle.sock"), lock
}

func TestServer_ServesOnSocket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h, socket, lock := serving(t, f)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	if lock.released != 1 {
		t.Errorf("the lock of the deletion queue was given back %d times", lock.released)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Fatalf("socket: %v, %v", info, err)
	}
	c := agentclient.New(socket)
	ep, err := c.Endpoint(t.Context(), "pod-name:shop/cart")
	if err != nil || ep.ID != 7 {
		t.Fatalf("endpoint %+v, error %v", ep, err)
	}
	if _, err := c.Endpoint(t.Context(), "99"); !errors.Is(err, agentclient.ErrNotFound) {
		t.Errorf("an endpoint that is not there: %v", err)
	}
	if err := h.Stop(log, context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := c.Config(t.Context()); !errors.Is(err, agentclient.ErrUnreachable) {
		t.Errorf("after the stop: %v", err)
	}
}

// TestServer_Stop_CancelsPendingRequests stops the server with a waiting creation and an open stream of changes.
func TestServer_Stop_CancelsPendingRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.manager.block = make(chan struct{})
	h, socket, _ := serving(t, f)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, socket)
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /statedb/changes/mtus HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Fatalf("stream of changes: %q, %v", line, err)
	}
	created := make(chan error, 1)
	waiting := dial(t, socket)
	defer waiting.Close()
	if _, err := io.WriteString(waiting, "PUT /v1/endpoint/0 HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := io.ReadAll(waiting); created <- err }()
	if err := h.Stop(log, context.Background()); err != nil { // TestDrain_IsBounded checks the duration
		t.Fatal(err)
	}
	<-created
}

// TestStateDB_CapsStreams opens more streams than allowed, then closes one.
func TestStateDB_CapsStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h, socket, _ := serving(t, f)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	}()
	open := func() (io.Closer, string) {
		conn := dial(t, socket)
		if _, err := io.WriteString(conn, "GET /statedb/changes/mtus HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return conn, line
	}
	for range maxStreams {
		conn, line := open()
		if line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("a stream within the limit: %q", line)
		}
		defer conn.Close()
	}
	conn, line := open()
	conn.Close()
	if line != "HTTP/1.1 429 Too Many Requests\r\n" {
		t.Errorf("one stream too many: %q", line)
	}
}
