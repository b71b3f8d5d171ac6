package shell

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/shellwire"
	"github.com/waggle-net/waggle/pkg/unixsocket"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// maxSessions is the maximum number of open sessions.
const maxSessions = 32

// acceptPause is the pause after a failed accept, for example when no file descriptor is free.
const acceptPause = 100 * time.Millisecond

// server accepts connections on the socket and runs a session for each.
type server struct {
	params
	engine *script.Engine
	socket *unixsocket.Listener
}

func register(p params) {
	s := &server{params: p, engine: &script.Engine{Cmds: commands(p.Commands.Map(), p.Printer)}}
	p.Lifecycle.Append(cell.Hook{OnStart: s.start, OnStop: s.stop})
}

// start opens the socket and adds the job that accepts connections.
func (s *server) start(cell.HookContext) (err error) {
	path := s.Config.SocketPath
	if path == "" {
		path = filepath.Join(s.Settings.StateDir, shellwire.SocketName)
	}
	if s.socket, err = unixsocket.Listen(path, unixsocket.Options{Mode: 0o600}); err != nil {
		return err
	}
	watchdog.Add(s.Jobs, "serve", s.serve)
	return nil
}

// stop closes the socket, so that serve returns before the stop hook of the job group waits for it.
func (s *server) stop(cell.HookContext) error {
	if s.socket == nil {
		return nil
	}
	if err := s.socket.Close(); !errors.Is(err, net.ErrClosed) { // the job may have closed it already
		return err
	}
	return nil
}

func (s *server) serve(ctx context.Context, health cell.Health) error {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	// Jobs that were added while the hive starts are stopped before any stop hook runs.
	defer context.AfterFunc(ctx, func() { s.socket.Close() })()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slots := make(chan struct{}, maxSessions)
	health.OK("listening on " + s.socket.Path())
	for {
		watchdog.Idle(ctx)
		conn, err := s.socket.Accept()
		watchdog.Busy(ctx)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			health.Degraded("accept", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case slots <- struct{}{}:
			sessions.Go(func() {
				defer func() { <-slots }()
				s.session(ctx, conn)
			})
		default:
			reject(conn)
		}
	}
}

func reject(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("too many shells are open: close one" + shellwire.ErrorMarker + "\n"))
	conn.Close()
}
