package monitor

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/drops"
)

// Cell is the module.
var Cell = cell.Module("monitor", "Events of the datapath",
	cell.ProvidePrivate(newSource), // the ring buffer; tests put a fake in its place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.Config(defaultConfig),
	cell.ProvidePrivate(
		drops.NewTable, // only this cell writes
		newHub,         // listeners and their queues
	),
	cell.Provide(statedb.RWTable[*drops.Drop].ToTable), // anyone may read
	cell.Invoke(
		registerServer, // the socket
		registerReader, // ring buffer to table and hub
	),
)
