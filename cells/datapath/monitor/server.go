package monitor

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/monitorwire"
	"github.com/waggle-net/waggle/pkg/unixsocket"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	socketMode = 0o660 // as the API socket
	// maxListeners limits the descriptors of the agent that clients can hold.
	maxListeners = 64
	// writeTimeout is the timeout of a write to a listener. A listener that does not read for so long is disconnected.
	writeTimeout = 30 * time.Second
)

// server streams payloads to the clients of the socket.
type server struct {
	log    *slog.Logger
	hub    *hub
	config derived
	socket *unixsocket.Listener
}

func registerServer(log *slog.Logger, lifecycle cell.Lifecycle, jobs job.Group, agent agentconfig.Agent, c Config, h *hub) error {
	config, err := derive(c, agent)
	if err != nil {
		return err
	}
	s := &server{log: log, hub: h, config: config}
	lifecycle.Append(cell.Hook{OnStart: s.listen, OnStop: s.close})
	watchdog.Add(jobs, "serve-monitor", s.serve)
	return nil
}

func (s *server) listen(cell.HookContext) (err error) {
	s.socket, err = unixsocket.Listen(s.config.path, unixsocket.Options{Mode: socketMode})
	return err
}

func (s *server) close(cell.HookContext) error {
	if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// serve accepts connections until the agent stops, and returns when all connections are closed.
func (s *server) serve(ctx context.Context, health cell.Health) error {
	stop := context.AfterFunc(ctx, func() { _ = s.socket.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	free := make(chan struct{}, maxListeners)
	health.OK("listening on " + s.config.path)
	for {
		watchdog.Idle(ctx)
		conn, err := s.socket.Accept()
		watchdog.Busy(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case free <- struct{}{}:
			connections.Go(func() {
				s.stream(ctx, conn)
				<-free
			})
		default:
			s.log.Warn("Monitor connection rejected, too many listeners", "limit", maxListeners)
			_ = conn.Close()
		}
	}
}

// stream writes payloads to one client until the client disconnects, a write fails or the agent stops.
func (s *server) stream(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	l := s.hub.join(s.config.queue)
	defer s.hub.leave(l)
	gone := make(chan struct{})
	go func() { // a client sends nothing, so a read returns only when the connection is closed
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1))
	}()
	defer func() { _ = conn.Close(); <-gone }()
	out := monitorwire.NewEncoder(conn)
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case p := <-l.queue:
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			if err := out.Put(p); err != nil {
				return
			}
		}
	}
}
