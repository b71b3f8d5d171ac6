package podmtu

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/podmtus"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell updates the MTU of running pods.
var Cell = cell.Module("pod-mtu", "MTU of running pods",
	cell.ProvidePrivate(newKernel), // links and routes; tests provide a fake
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		podmtus.NewTable, // only this cell writes
		newRecord,        // MTUs that this node has assigned
	),
	cell.Provide(statedb.RWTable[podmtus.PodMTU].ToTable), // the loader repairs host ends
	cell.Invoke(register),
)

func register(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "follow-mtu", (&follower{p}).run, 100*time.Millisecond, time.Minute)
}
