package clusterhealthz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/identityrounds"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/version"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell answers the probes of kubelet and serves the metrics of the cluster role.
var Cell = cell.Module("cluster-healthz", "Health port of the cluster role",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newHandler), // answers without a port
	cell.Invoke(register),           // start hook that opens the port
)

// Config configures the address of the health port.
type Config struct {
	Address string `mapstructure:"operator-api-serve-addr"`
}

// DefaultConfig uses another port than the agent, because the agent of the node has the same network namespace.
var DefaultConfig = Config{Address: "127.0.0.1:9234"}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("operator-api-serve-addr", c.Address, "Address (host:port) on which the cluster role serves health probes and metrics; empty for none")
}

// timeout bounds the reading of a probe and the writing of its answer.
const timeout = 10 * time.Second

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	Config    Config
	Handler   handler
	Monitor   *watchdog.Monitor
}

func register(p params) error {
	if p.Config.Address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(p.Config.Address); err != nil {
		return fmt.Errorf("--operator-api-serve-addr=%q: want host:port, such as 127.0.0.1:9234: %w", p.Config.Address, err)
	}
	p.Lifecycle.Append(cell.Hook{OnStart: p.start})
	return nil
}

func (p params) start(ctx cell.HookContext) error {
	at := &port{address: p.Config.Address, pause: tryAgain, live: p.Monitor.Live}
	if err := at.open(ctx); err != nil {
		return err
	}
	watchdog.AddVital(p.Jobs, "serve", func(ctx context.Context, health cell.Health) error {
		if at.listener == nil {
			p.Log.Info("Another replica on this node serves the health port until it stops", "address", at.address)
			if err := at.wait(ctx, health); err != nil || at.listener == nil {
				return err
			}
		}
		l := at.listener
		health.OK("listening on " + l.Addr().String())
		watchdog.Idle(ctx) // each request has its own goroutine
		server := &http.Server{Handler: p.Handler, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout,
			ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)}
		defer context.AfterFunc(ctx, func() { server.Close() })()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}

// handler answers probes and scrapes from tables.
type handler struct{ http.Handler }

// inputs are the tables and the monitor that the answers are made from.
type inputs struct {
	cell.In

	DB      *statedb.DB
	Leaders statedb.Table[leadership.Leadership]
	Modules statedb.Table[health.Status]
	Rounds  statedb.Table[identityrounds.Round]
	Monitor *watchdog.Monitor
}

func newHandler(in inputs) handler {
	mux := http.NewServeMux()
	ready := func(w http.ResponseWriter, _ *http.Request) {
		writeLine(w, readinessLine(in.DB.ReadTxn(), in.Leaders, in.Modules))
	}
	live := func(w http.ResponseWriter, r *http.Request) {
		if stall, live := in.Monitor.Live(r.Context()); !live {
			writeLine(w, "Failure - "+version.String()+": "+stall)
			return
		}
		writeLine(w, "Ok - "+version.String())
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{in})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 3}))
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /healthz", live)
	return handler{mux}
}

// readinessLine returns the line for /readyz. It begins with Failure when this replica could not become the leader.
func readinessLine(txn statedb.ReadTxn, leaders statedb.Table[leadership.Leadership], modules statedb.Table[health.Status]) string {
	line := "Failure - " + version.String() + ": the Lease has not been read yet"
	for l := range leaders.All(txn) {
		switch {
		case l.Error != "":
			line = "Failure - " + version.String() + ": " + l.Error
		case !l.Until.IsZero():
			line = "Ok - " + version.String() + ": leads"
		default:
			line = "Ok - " + version.String() + ": candidate, leader is " + l.Leader
		}
	}
	var degraded []string
	for s := range modules.List(txn, health.ByLevel(health.Degraded)) {
		degraded = append(degraded, strings.Join(strings.Fields(s.Module+": "+s.Message+": "+s.Error), " "))
	}
	if len(degraded) > 0 {
		line += "; degraded: " + strings.Join(degraded, "; ")
	}
	return line
}

func writeLine(w http.ResponseWriter, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set(replicaHeader, replicaRole)
	if strings.HasPrefix(line, "Failure") {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, line)
}
