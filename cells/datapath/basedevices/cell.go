package basedevices

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
)

// Cell creates and repairs waggle_host, waggle_net, waggle_hold and waggle_hold2.
var Cell = cell.Module("base-devices", "Links of the agent itself",
	cell.ProvidePrivate(newKernel), // netlink
	Reconciler,
)

// Reconciler is the cell without its kernel, for tests that provide one.
var Reconciler = cell.Group(
	cell.ProvidePrivate(
		desireddevices.NewTable, // only this cell writes
		newOps,
	),
	cell.Provide(statedb.RWTable[*desireddevices.Device].ToTable),
	cell.Invoke(registerController, registerPodLinks, registerReconciler, registerRepair),
)
