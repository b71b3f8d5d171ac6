package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/unixsocket"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// socketName is the name of the socket in the state directory.
	socketName = "waggle.sock"
	// socketGroup may use the API in addition to root, if the group exists.
	socketGroup = "waggle"

	// apiTimeout limits the time for reading a request, and the time for handling it and writing the reply. The longest requests are creations, which wait for the
	// datapath for up to 30 s.
	apiTimeout = 45 * time.Second
	// handlerTimeout cancels a handler early enough to write its error.
	handlerTimeout = apiTimeout - 2*time.Second
)

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	Config    Config
	Settings  agentconfig.Agent
	Handler   http.Handler
	Queue     endpoint.QueueLock
}

// listener is the open socket with its server.
type listener struct {
	params
	server *http.Server
	drain  *drain
}

func register(p params) {
	l := &listener{params: p}
	p.Lifecycle.Append(cell.Hook{OnStart: l.start, OnStop: l.stop})
}

// start opens the socket. It adds the job, which needs the open socket, so register does not add it. Plugins may use the deletion queue only while no agent
// listens, so the queue's lock is released right after.
func (l *listener) start(cell.HookContext) error {
	defer l.Queue.Release()
	socket, err := unixsocket.Listen(l.path(), unixsocket.Options{Mode: 0o660, Group: socketGroup})
	if err != nil {
		return err
	}
	l.drain = newDrain()
	l.server = &http.Server{
		Handler:      l.drain.rejectNew(watched(l.Jobs, l.Handler)),
		ReadTimeout:  apiTimeout,
		WriteTimeout: apiTimeout,
		ErrorLog:     slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug),
	}
	watchdog.AddVital(l.Jobs, "serve", func(ctx context.Context, health cell.Health) error {
		// Jobs that were added while the hive starts are stopped before any stop hook runs. This job ends after the last request, because requests need the loops of
		// other cells.
		drained := make(chan error, 1)
		defer context.AfterFunc(ctx, func() { drained <- l.drain.stop(l.server) })()
		health.OK("listening on " + socket.Path())
		watchdog.Idle(ctx) // each request has its own goroutine, see watched
		if err := l.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return <-drained
	})
	l.Log.Info("API is served", "socket", socket.Path())
	return nil
}

// stop closes the server if the job never ran; otherwise the server is already closed.
func (l *listener) stop(cell.HookContext) error {
	if l.server == nil {
		return nil
	}
	return l.server.Close()
}

func (l *listener) path() string {
	if l.Config.SocketPath != "" {
		return l.Config.SocketPath
	}
	return filepath.Join(l.Settings.StateDir, socketName)
}
