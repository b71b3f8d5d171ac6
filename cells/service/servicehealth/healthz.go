package servicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

type healthzParams struct {
	cell.In

	Config    Config
	Settings  agentconfig.Agent
	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	DB        *statedb.DB
	Ready     readiness.Tables
	Nodes     statedb.Table[*k8s.Node]
}

// registerHealthz listens in a start hook, so that an address in use stops the agent with an error, and serves in a job.
func registerHealthz(p healthzParams) error {
	if err := p.Config.check(); err != nil {
		return err
	}
	if p.Config.HealthzAddress == "" || !p.Settings.KubeProxyReplacement {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", &healthz{params: p, updated: time.Now()})
	server := newServer(mux, p.Log)
	p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		l, err := net.Listen("tcp", p.Config.HealthzAddress)
		if err != nil {
			return fmt.Errorf("--kube-proxy-replacement-healthz-bind-address: %w: if kube-proxy is running, stop it, or choose another address",
				err)
		}
		watchdog.Add(p.Jobs, "serve-healthz", func(ctx context.Context, health cell.Health) error {
			health.OK("listening on " + l.Addr().String())
			watchdog.Idle(ctx) // each request has its own goroutine
			defer context.AfterFunc(ctx, func() { server.Close() })()
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		return nil
	}})
	return nil
}

// leaving is the taint by which the cluster autoscaler announces the removal of a node: load balancers must stop using it for new connections, while
// established connections continue.
const leaving = "ToBeDeletedByClusterAutoscaler"

// healthz reports whether this node serves Services.
type healthz struct {
	params healthzParams

	mu      sync.Mutex
	updated time.Time // last time at which the node was healthy
}

// ServeHTTP implements http.Handler. The body is kube-proxy's.
func (h *healthz) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	txn, now := h.params.DB.ReadTxn(), time.Now()
	well := readiness.Evaluate(txn, h.params.Ready).Ready()
	node, _, found := h.params.Nodes.Get(txn, k8s.NodeByName(h.params.Settings.NodeName))
	eligible := !found || !slices.Contains(node.TaintKeys, leaving)
	h.mu.Lock()
	if well {
		h.updated = now
	}
	updated := h.updated
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !well || !eligible {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(struct {
		LastUpdated  string `json:"lastUpdated"`
		CurrentTime  string `json:"currentTime"`
		NodeEligible bool   `json:"nodeEligible"`
	}{updated.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), eligible})
}
