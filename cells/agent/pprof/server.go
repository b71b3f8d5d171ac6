package pprof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// timeout bounds the reading of a request and the writing of its answer. Package net/http/pprof adds the requested duration of a profile.
	timeout = 30 * time.Second
	// memProfileRate is the mean number of allocated bytes for each recorded allocation, the default of package runtime. The agent begins with the
	// rate 0, so that the profile costs nothing without --pprof. With --pprof it lacks the allocations before the start hook of this cell.
	memProfileRate = 512 << 10
)

type params struct {
	cell.In

	Options   options
	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
}

// registerServer listens in a start hook, so that a port in use ends the agent with an error, and serves in a job. An error of the job degrades the module: the
// agent works without profiles.
func registerServer(p params) {
	if !p.Options.enabled() {
		return
	}
	server := &http.Server{Handler: newHandler(), ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)}
	var listener net.Listener
	p.Lifecycle.Append(cell.Hook{
		OnStart: func(ctx cell.HookContext) (err error) {
			listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", p.Options.addr.String())
			if err != nil {
				return fmt.Errorf("serve profiles: %w: change --pprof-address or --pprof-port, or leave --pprof out", err)
			}
			p.Options.record()
			if p.Options.local() {
				p.Log.Info("Serving profiles", "address", listener.Addr().String())
			} else {
				p.Log.Warn("Serving profiles to each client that reaches the address, without authentication; without --pprof-address only this node reaches them",
					"address", listener.Addr().String())
			}
			return nil
		},
		OnStop: func(cell.HookContext) error {
			p.Options.stop()
			_ = listener.Close() // needed only if the job never ran; otherwise the listener is closed already
			return server.Close()
		},
	})
	watchdog.Add(p.Jobs, "serve", func(ctx context.Context, health cell.Health) error {
		health.OK("serving profiles on " + listener.Addr().String())
		watchdog.Idle(ctx) // each request has its own goroutine
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve profiles on %s: %w", listener.Addr(), err)
		}
		return nil
	})
}

// record starts the profiles that the runtime records all the time.
func (o options) record() {
	if runtime.MemProfileRate == 0 {
		runtime.MemProfileRate = memProfileRate
	}
	if o.block > 0 {
		runtime.SetBlockProfileRate(o.block)
	}
	if o.mutex > 0 {
		runtime.SetMutexProfileFraction(o.mutex)
	}
}

// stop ends the profiles that slow the process down.
func (o options) stop() {
	if o.block > 0 {
		runtime.SetBlockProfileRate(0)
	}
	if o.mutex > 0 {
		runtime.SetMutexProfileFraction(0)
	}
}

// newHandler serves only its own paths. Package net/http/pprof also registers its handlers in http.DefaultServeMux, which no server of the agent uses.
func newHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and the profiles that have no function of their own
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // long lists of addresses
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 3}))
	return mux
}
