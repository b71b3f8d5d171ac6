package socketlb

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("socket-lb", "Services at the socket",
	cell.Config(DefaultConfig),
	cell.Provide(
		newOptions,  // anyone may read
		newCommands, // socket-lb/options
	),
)
