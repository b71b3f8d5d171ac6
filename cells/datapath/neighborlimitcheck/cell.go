package neighborlimitcheck

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/neighborlimits"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell reads the limits and the entries of the neighbour tables at intervals, and is Degraded while a table is too small.
var Cell = cell.Module("neighbor-limits", "Sizes of the neighbour tables of the kernel",
	cell.ProvidePrivate(newKernel), // procfs
	Watcher,
)

// Watcher is the cell without the access to procfs, for tests with a fake kernel.
var Watcher = cell.Group(
	cell.ProvidePrivate(neighborlimits.NewTable), // only this cell may write
	cell.Provide(statedb.RWTable[neighborlimits.Limit].ToTable),
	cell.Invoke(register),
)

func register(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "read-neighbor-limits", (&controller{params: p}).run, time.Second, time.Minute)
}
