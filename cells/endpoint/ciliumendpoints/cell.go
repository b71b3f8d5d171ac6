package ciliumendpoints

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell publishes the pods of this node as CiliumEndpoint objects.
var Cell = cell.Module("cilium-endpoints", "Pods of this node as CiliumEndpoint objects",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newTable), // only this cell writes desired-ciliumendpoints
	cell.Invoke(register),
)

const (
	pruneInterval = 30 * time.Minute // objects are usually deleted with their endpoints; pruning finds the rest
	driftInterval = 30 * time.Second // maximum time until a foreign change of an object is noticed
	minRetry      = 100 * time.Millisecond
	maxRetry      = 5 * time.Second // other nodes wait for these objects when the API server responds again
	roundSize     = 100
	settle        = 50 * time.Millisecond // debounce interval: the endpoints of a burst become one batch; no request waits for it
	settleReport  = 500 * time.Millisecond
)

type params struct {
	cell.In

	Config    Config
	DB        *statedb.DB
	Jobs      job.Group
	Settings  agentconfig.Agent
	Client    *kubeapi.Client
	Endpoints statedb.Table[*endpoints.Endpoint]
	Of        statedb.Table[*identities.EndpointIdentity]
	States    statedb.Table[*endpointstates.EndpointState]
	Pods      statedb.Table[*k8s.Pod]
	Node      statedb.Table[*localnode.LocalNode]
	Published statedb.Table[*cilium.Endpoint] // the existing objects of all nodes
	Wanted    statedb.RWTable[*object]
	Drift     drift.Watch
	Done      initialize
}

// register does nothing without Kubernetes and with --disable-endpoint-crd.
func register(p params, r reconciler.Params) error {
	if err := p.Config.check(); err != nil {
		return err
	}
	if p.Client == nil || p.Config.Disable {
		return nil
	}
	ops := &ops{client: p.Client, failed: make(chan struct{}, 1), node: p.Settings.NodeName, published: p.Published, local: p.Node,
		limiter: rate.NewLimiter(rate.Limit(p.Config.QPS), p.Config.Burst)}
	rec, err := watchdog.RegisterRemote(r, p.Wanted, (*object).Clone, (*object).WithStatus, (*object).GetStatus, ops, ops,
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // cilium-endpoints shows the state of each object
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // the writes have their own limiter
	)
	if err != nil {
		return err
	}
	watchdog.AddRetried(p.Jobs, "fill-ciliumendpoints", newController(p).run, minRetry, maxRetry)
	watchdog.AddRetried(p.Jobs, "report-ciliumendpoints", p.report, minRetry, maxRetry)
	watchdog.AddRetried(p.Jobs, "repeat-failed-prune", func(ctx context.Context, _ cell.Health) error { return ops.repeat(ctx, rec.Prune) }, minRetry, maxRetry)
	watchdog.AddTimer(p.Jobs, "find-drift", func(context.Context) error { p.markDrift(time.Now()); return nil }, driftInterval)
	return nil
}
