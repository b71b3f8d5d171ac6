package unmanagedpodfinder

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell finds running pods without an endpoint. It is the only writer of the table unmanaged-pods.
var Cell = cell.Module("unmanaged-pods", "Pods that run without an endpoint",
	cell.ProvidePrivate(unmanagedpods.NewTable), // only this cell may write
	cell.Provide(statedb.RWTable[*unmanagedpods.Pod].ToTable),
	cell.Invoke(register),
)

func register(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "find-unmanaged-pods", newController(p).run, 100*time.Millisecond, time.Minute)
}
