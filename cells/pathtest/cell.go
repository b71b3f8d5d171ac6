package pathtest

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	tables "github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// Cell tests the paths to the other nodes.
var Cell = cell.Module("path-test", "Tests of the paths to other nodes",
	cell.ProvidePrivate(newKernel), // sockets
	implementation,
)

// implementation is the module without the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		tables.NewTable, nodepaths.NewTable, // only this cell writes
		newTester, // decides which path is tested when
	),
	cell.Provide(statedb.RWTable[*tables.Test].ToTable, statedb.RWTable[*nodepaths.Path].ToTable),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = time.Minute
)

// register starts nothing when paths are not tested: the table is empty then. Without health checking this node may not open a raw socket, and the nodes
// have no server that answers.
func register(jobs job.Group, agent settings.Agent, t *tester) {
	if !agent.HealthChecking {
		return
	}
	txn := t.db.WriteTxn(t.table)
	t.initialized = t.table.RegisterInitializer(txn, "path-test")
	txn.Commit()
	heartbeat.AddRetried(jobs, "test-paths", t.run, retryMin, retryMax)
}
