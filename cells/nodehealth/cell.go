package nodehealth

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
	tables "github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
)

// Cell probes the nodes of the cluster and answers their probes.
var Cell = cell.Module("node-health", "Reachability of the nodes of the cluster",
	cell.ProvidePrivate(
		newKernel, // sockets
		newSelf,   // how this agent is
	),
	implementation,
)

// implementation is the module without the kernel and the rest of the agent.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		tables.NewTable,    // only this cell writes
		nodeviews.NewTable, // likewise
		newView,            // what this agent knows of the nodes, for answers to others
		newOptions,         // checked flags
		newProber,          // decides which node is probed when
	),
	cell.Provide(
		statedb.RWTable[*tables.Path].ToTable,    // anyone may read
		statedb.RWTable[*nodeviews.View].ToTable, // likewise
	),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = time.Minute // another process may have the port or the socket
)

// register starts nothing with --enable-health-checking=false: the table is empty then.
func register(jobs job.Group, agent settings.Agent, p *prober, r responder, a api) {
	if !agent.HealthChecking {
		return
	}
	txn := p.db.WriteTxn(p.table)
	p.initialized = p.table.RegisterInitializer(txn, "node-health")
	txn.Commit()
	heartbeat.AddRetried(jobs, "probe-nodes", p.run, retryMin, retryMax)
	heartbeat.AddRetried(jobs, "serve-hello", r.run, retryMin, retryMax)
	heartbeat.AddRetried(jobs, "serve-api", a.run, retryMin, retryMax)
}
