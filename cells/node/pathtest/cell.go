package pathtest

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell tests the paths to the other nodes and reports their faults.
var Cell = cell.Module("path-test", "Tests of the paths to other nodes",
	cell.ProvidePrivate(newKernel), // sockets
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		pathtests.NewTable, nodepaths.NewTable, // only this cell writes
		newTester, // schedules the tests
	),
	cell.Provide(statedb.RWTable[*pathtests.Test].ToTable, statedb.RWTable[*nodepaths.Path].ToTable),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = time.Minute
)

// register starts nothing with health checking disabled, and the table stays empty. Without health checking this node must not open a raw socket, and other
// nodes run no server that replies.
func register(jobs job.Group, agent agentconfig.Agent, t *tester) {
	if !agent.HealthChecking {
		return
	}
	txn := t.db.WriteTxn(t.table)
	t.initialized = t.table.RegisterInitializer(txn, "path-test")
	txn.Commit()
	watchdog.AddRetried(jobs, "test-paths", t.run, retryMin, retryMax)
}
