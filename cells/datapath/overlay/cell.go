package overlay

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/overlays"
)

// Cell maintains the tunnel device and the pod ranges behind it.
var Cell = cell.Module("overlay", "Tunnel to the pods of other nodes",
	cell.ProvidePrivate(newKernel), // netlink and the maps overlay and encap
	cell.Provide(newProbe),         // capabilities of programs without the device
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		overlays.NewTable, // only this cell writes
		newOps,
	),
	cell.Provide(statedb.RWTable[*overlays.Overlay].ToTable), // every cell may read
	cell.Invoke(
		registerController, // nodes into the row and ipcache
		registerReconciler, // the row into the device
		registerRepair,     // drift into a pending row
	),
)
