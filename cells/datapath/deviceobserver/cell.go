package deviceobserver

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
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
		devices.NewTable, devices.NewAddressTable, devices.NewRouteTable, devices.NewNeighborTable, // only this cell writes
		newStore,    // applies changes to the tables
		newSelector, // selects the links that lead out of the node
	),
	cell.Provide(
		statedb.RWTable[*devices.Device].ToTable,
		statedb.RWTable[devices.Address].ToTable,
		statedb.RWTable[*devices.Route].ToTable,
		statedb.RWTable[devices.Neighbor].ToTable,
	),
	cell.Invoke(registerObserver),
)
