package nodeaddresses

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// Cell derives the node's addresses from its devices. It is the only writer of node-addresses.
var Cell = cell.Module("node-addresses", "Addresses of the node itself",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		tables.NewTable, // only this cell writes
		newRules,        // the flags, checked
	),
	cell.Provide(statedb.RWTable[tables.Address].ToTable),
	cell.Invoke(registerController),
)
