package nodemaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
)

// Cell maintains the maps nodes and node_addrs.
var Cell = cell.Module("node-maps", "Paths to other nodes",
	cell.ProvidePrivate(newKernel), // the real maps
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		nodeslots.NewTable, // only this cell writes
		newOps,
		newReconciler, // rows into the maps
	),
	cell.Provide(statedb.RWTable[*nodeslots.Slot].ToTable), // every cell may read
	cell.Invoke(
		registerController, // nodes and ids into rows
		registerVerify,     // drift into pending rows
	),
)
