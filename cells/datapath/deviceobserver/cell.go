package deviceobserver

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/devices"
)

// Cell observes the network of the node. It is the only writer of the four tables.
var Cell = cell.Module("devices", "Links addresses routes and neighbours of the node",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newKernel), // the netlink subscription and lists
	Observer,
)

// Observer is the cell without its kernel, for tests that provide one.
var Observer = cell.Group(
	cell.ProvidePrivate(
		tables.NewTable, tables.NewAddressTable, tables.NewRouteTable, tables.NewNeighborTable, // only this cell writes
		newStore,    // applies changes to the tables
		newSelector, // selects the links that lead out of the node
	),
	cell.Provide(
		statedb.RWTable[*tables.Device].ToTable,
		statedb.RWTable[tables.Address].ToTable,
		statedb.RWTable[*tables.Route].ToTable,
		statedb.RWTable[tables.Neighbor].ToTable,
	),
	cell.Invoke(registerObserver),
)
