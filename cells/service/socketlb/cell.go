package socketlb

import "github.com/cilium/hive/cell"

// Cell provides the checked options of the translation of services at the socket.
var Cell = cell.Module("socket-lb", "Services at the socket",
	cell.Config(DefaultConfig),
	cell.Provide(
		newOptions,  // checked flags, for all cells
		newCommands, // socket-lb/options
	),
)
