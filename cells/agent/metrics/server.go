package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

type serverParams struct {
	cell.In

	Config    Config
	Registry  *registry
	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
}

// registerServer listens in a start hook, so that a port in use ends the agent with an error, and serves in a job.
func registerServer(p serverParams) {
	if !p.Config.enabled() {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: 3}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	var listener net.Listener
	p.Lifecycle.Append(cell.Hook{
		OnStart: func(ctx cell.HookContext) (err error) {
			listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", p.Config.PrometheusServeAddr)
			if err != nil {
				return fmt.Errorf("serve metrics: %w: change --prometheus-serve-addr", err)
			}
			p.Log.Info("Serving metrics", "address", listener.Addr().String())
			return nil
		},
		OnStop: func(cell.HookContext) error {
			_ = listener.Close() // needed only if the job never ran; otherwise the listener is closed already
			return server.Close()
		},
	})
	watchdog.AddVital(p.Jobs, "serve", func(ctx context.Context, health cell.Health) error {
		health.OK("serving on " + listener.Addr().String())
		watchdog.Idle(ctx) // each request has its own goroutine
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics on %s: %w", listener.Addr(), err)
		}
		return nil
	})
}
