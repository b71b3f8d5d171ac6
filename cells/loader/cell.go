package loader

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

// Cell is the module.
var Cell = cell.Module("loader", "Programs on their hooks",
	cell.ProvidePrivate(newKernel), // traffic control, tcx and nftables; tests put a fake in its place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		newTable,      // only this cell writes
		newGeneration, // the programs, loaded by a start hook
		newOps,
	),
	cell.Provide(statedb.RWTable[*attachments.Attachment].ToTable), // anyone may read
	cell.Invoke(
		registerController, // devices and endpoints into rows
		registerReconciler, // rows onto hooks
	),
)
