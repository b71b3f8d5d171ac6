package ipam

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
)

// Cell gives out pod addresses from the ranges in node-cidrs.
var Cell = cell.Module("ipam", "Pod addresses",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		ipamaddresses.NewTable, // only this cell may write
		ipamusage.NewTable,     // likewise
		newSettings,            // checked flags
		newRouterFile,          // router addresses over restarts
		newLedger,              // addresses that nobody has claimed, and those that rest, over restarts
		newAllocator,
	),
	cell.Provide(
		statedb.RWTable[ipamaddresses.Address].ToTable, // anyone may read
		statedb.RWTable[ipamusage.Usage].ToTable,       // for metrics
		func(a *allocator) ipam.Allocator { return a }, // for the API and for endpoints
		commandsOf, // "ipam/dump"
	),
	cell.Invoke(register),
)

// register adds the loops: one follows the ranges, one ends what has an expiry, one counts.
func register(group job.Group, r ranges, a *allocator, usage statedb.RWTable[ipamusage.Usage]) {
	heartbeat.AddRetried(group, "count-addresses", a.usageLoop(usage), retryMin, retryMax)
	heartbeat.AddRetried(group, "follow-ranges", r.follow, retryMin, retryMax)
	heartbeat.AddRetried(group, "expire-addresses", a.expireLoop, retryMin, retryMax)
}
