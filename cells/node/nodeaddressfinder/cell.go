package nodeaddressfinder

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// Cell computes the node's addresses from the devices and the Node. It is the only writer of the table node-addresses.
var Cell = cell.Module("node-addresses", "Addresses of the node itself",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		nodeaddresses.NewTable, // only this cell writes
		newRules,               // checked flags
	),
	cell.Provide(statedb.RWTable[nodeaddresses.Address].ToTable),
	cell.Invoke(registerController),
)
