package ipamallocator

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell allocates pod addresses from the ranges in node-cidrs.
var Cell = cell.Module("ipam", "Pod addresses",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		ipamaddresses.NewTable, // only this cell writes
		ipamusage.NewTable,     // likewise
		newSettings,            // validated flags
		newRouterFile,          // stores router addresses across restarts
		newLedger,              // stores unclaimed and quarantined addresses across restarts
		newAllocator,
	),
	cell.Provide(
		statedb.RWTable[ipamaddresses.Address].ToTable, // read by other cells
		statedb.RWTable[ipamusage.Usage].ToTable,       // for metrics
		func(a *allocator) ipam.Allocator { return a }, // for the API and endpoint-manager
		commandsOf, // command "ipam/dump"
	),
	cell.Invoke(register),
)

// register adds three loops: one applies the ranges, one expires addresses, one counts addresses.
func register(group job.Group, r ranges, a *allocator, usage statedb.RWTable[ipamusage.Usage]) {
	watchdog.AddRetried(group, "count-addresses", a.usageLoop(usage), retryMin, retryMax)
	watchdog.AddRetried(group, "follow-ranges", r.follow, retryMin, retryMax)
	watchdog.AddRetried(group, "expire-addresses", a.expireLoop, retryMin, retryMax)
}
