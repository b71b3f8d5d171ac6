package nodehealthprober

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell probes the nodes of the cluster and replies to their probes.
var Cell = cell.Module("node-health", "Reachability of the nodes of the cluster",
	cell.ProvidePrivate(
		newKernel, // sockets
		newSelf,   // status of this agent
	),
	implementation,
)

// implementation is the module without its kernel and without the status of the agent.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		nodehealth.NewTable, // only this cell writes
		nodeviews.NewTable,  // likewise
		newView,             // nodes that this agent knows, for replies to other agents
		newOptions,          // validated flags
		newProber,           // schedules the probes
	),
	cell.Provide(
		statedb.RWTable[*nodehealth.Path].ToTable, // read by other cells
		statedb.RWTable[*nodeviews.View].ToTable,  // likewise
	),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = time.Minute // another process may use the port or the socket
)

// register starts nothing with --enable-health-checking=false, and the table stays empty.
func register(jobs job.Group, agent agentconfig.Agent, p *prober, r responder, a api) {
	if !agent.HealthChecking {
		return
	}
	txn := p.db.WriteTxn(p.table)
	p.initialized = p.table.RegisterInitializer(txn, "node-health")
	txn.Commit()
	watchdog.AddRetried(jobs, "probe-nodes", p.run, retryMin, retryMax)
	watchdog.AddRetried(jobs, "serve-hello", r.run, retryMin, retryMax)
	watchdog.AddRetried(jobs, "serve-api", a.run, retryMin, retryMax)
}
