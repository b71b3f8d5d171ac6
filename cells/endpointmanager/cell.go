package endpointmanager

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Cell keeps the table endpoints and provides [endpoint.Manager].
var Cell = module(newKernel)

// module takes the constructor of the kernel's side, so that tests run without one.
func module(kernel any) cell.Cell {
	return cell.Module("endpoint-manager", "Which attachments are wanted",
		cell.Config(DefaultConfig),
		cell.ProvidePrivate(
			newTable,                    // only this cell writes endpoints
			collectedendpoints.NewTable, // likewise
			kernel,                      // looks for links and namespaces
			newPodSource,                // pods that the watch has not shown
			newManager,                  // the state behind the interface
			newReplay,                   // the deletion queue
		),
		cell.Provide(
			statedb.RWTable[*endpoints.Endpoint].ToTable,
			statedb.RWTable[collectedendpoints.Collected].ToTable, // for metrics
			func(m *manager) endpoint.Manager { return m },
			func(r *replay) endpoint.QueueLock { return r },
			commands,
		),
		cell.Invoke(
			registerRestore,   // start hook: files, ids, addresses, rows
			registerReplay,    // start hook: deletions that came while the agent was away
			registerLabels,    // job: pods -> labels of endpoints
			registerCollector, // job: ends endpoints whose pods have ended
			registerVerify,    // job: writes state files that somebody removed
			registerLeftFiles, // job: removes state files that could not be removed with their endpoints
		),
	)
}

// initialize completes the initializer of the table, in the commit that holds the restored rows.
type initialize func(statedb.WriteTxn)

func newTable(db *statedb.DB) (statedb.RWTable[*endpoints.Endpoint], initialize, error) {
	table, err := endpoints.NewTable(db)
	if err != nil {
		return nil, nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Abort()
	done := table.RegisterInitializer(txn, "state-files")
	txn.Commit()
	return table, done, nil
}

func registerRestore(lifecycle cell.Lifecycle, m *manager, done initialize) {
	lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error { return m.restore(done) }})
}

func registerLabels(jobs job.Group, m *manager) {
	heartbeat.Add(jobs, "follow-pod-labels", m.followPods)
}
