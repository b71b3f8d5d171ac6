package podmtu

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	tables "github.com/waggle-net/waggle/pkg/tables/podmtus"
)

// Cell is the module.
var Cell = cell.Module("pod-mtu", "MTU of running pods",
	cell.ProvidePrivate(newKernel), // links and routes; tests put a fake in its place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		tables.NewTable, // only this cell writes
		newRecord,       // which MTUs this node has given
	),
	cell.Provide(statedb.RWTable[tables.PodMTU].ToTable), // the loader repairs host ends
	cell.Invoke(register),
)

func register(jobs job.Group, p params) {
	heartbeat.AddRetried(jobs, "follow-mtu", (&follower{p}).run, 100*time.Millisecond, time.Minute)
}
