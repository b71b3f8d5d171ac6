package nodehealthprober

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/api/v1beta"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/version"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// apiTimeout is the timeout for reading a request, and for writing its reply once the reply is known.
const apiTimeout = 10 * time.Second

// api serves the health API. It replies from tables, except that a client may wait for new probes.
type api struct {
	cell.In

	Log     *slog.Logger
	DB      *statedb.DB
	Agent   agentconfig.Agent
	Options options
	Kernel  kernel
	Prober  *prober
	Nodes   statedb.Table[*nodes.Node]
	Paths   statedb.RWTable[*nodehealth.Path]
	Self    self
}

// self returns the status of this agent.
type self func() models.Status

func newSelf(db *statedb.DB, ready readiness.Tables) self {
	return func() models.Status {
		state, message := readiness.Evaluate(db.ReadTxn(), ready).Summary(version.String())
		return models.Status{State: models.StatusState(state), Msg: message}
	}
}

// run listens and serves until the context is canceled.
func (a api) run(ctx context.Context, health cell.Health) error {
	watchdog.Busy(ctx)
	l, err := a.Kernel.ListenAPI(filepath.Join(a.Agent.StateDir, v1beta.SocketName))
	if err != nil {
		return err
	}
	defer l.Close()
	server := &http.Server{Handler: a.handler(), ReadTimeout: apiTimeout, WriteTimeout: requestLimit + apiTimeout, IdleTimeout: apiTimeout,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	health.OK("listening on " + l.Addr().String())
	watchdog.Idle(ctx) // each request has its own goroutine
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (a api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+v1beta.BasePath+"/healthz", func(w http.ResponseWriter, _ *http.Request) { respondJSON(w, http.StatusOK, a.machine()) })
	mux.HandleFunc("GET "+v1beta.BasePath+"/status", func(w http.ResponseWriter, _ *http.Request) {
		respondJSON(w, http.StatusOK, a.status(a.DB.ReadTxn(), time.Time{}))
	})
	mux.HandleFunc("PUT "+v1beta.BasePath+"/status/probe", func(w http.ResponseWriter, r *http.Request) {
		since, err := a.Prober.requests.wait(r.Context())
		if err != nil {
			respondJSON(w, http.StatusInternalServerError, err.Error())
			return
		}
		respondJSON(w, http.StatusOK, a.status(a.DB.ReadTxn(), since))
	})
	return mux
}

// respondJSON writes a value as JSON.
func respondJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the only possible error is a failed connection
}

// machine returns the load and uptime of this node and the status of its agent.
func (a api) machine() v1beta.HealthResponse {
	load, uptime := a.load()
	return v1beta.HealthResponse{SystemLoad: load, Uptime: uptime, Cilium: models.StatusResponse{Cilium: a.Self()}}
}
