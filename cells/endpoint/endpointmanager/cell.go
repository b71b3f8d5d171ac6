package endpointmanager

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell attaches and detaches pods: it writes the table endpoints and provides [endpoint.Manager].
var Cell = module(newKernel)

// module builds the cell with the given constructor of kernel, so that tests run with a fake.
func module(kernel any) cell.Cell {
	return cell.Module("endpoint-manager", "Endpoints of this node",
		cell.Config(DefaultConfig),
		cell.ProvidePrivate(
			newTable,                    // only this cell writes endpoints
			collectedendpoints.NewTable, // likewise
			kernel,                      // observes links and namespaces
			newPodSource,                // pods that the watch has not delivered yet
			newManager,                  // implements endpoint.Manager
			newReplay,                   // replays the deletion queue
		),
		cell.Provide(
			statedb.RWTable[*endpoints.Endpoint].ToTable,
			statedb.RWTable[collectedendpoints.Collected].ToTable, // for metrics
			func(m *manager) endpoint.Manager { return m },
			func(r *replay) endpoint.QueueLock { return r },
			commands,
		),
		cell.Invoke(
			registerRestore,   // start hook: restores files, ids, addresses and rows
			registerReplay,    // start hook: replays deletions that were queued while the agent was down
			registerLabels,    // job: copies labels of pods to endpoints
			registerCollector, // job: removes endpoints whose pods have ended
			registerVerify,    // job: writes missing state files again
			registerLeftFiles, // job: removes state files whose removal failed when their endpoints were deleted
		),
	)
}

// initialize completes the initializer of the table, in the commit that inserts the restored rows.
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
	watchdog.Add(jobs, "follow-pod-labels", m.followPods)
}
