package masquerade

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// Cell keeps the maps netdevs and unmasqueraded.
var Cell = cell.Module("masquerade", "Addresses under which packets leave the node",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newKernel), // the real maps
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		tables.NewNetdevTable, tables.NewExclusionTable, // only this cell writes
		newRules,        // the flags, checked
		newInitializers, // complete the tables
		newVerifier,     // rows into the maps, and whether they still are there
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*tables.Netdev].ToTable,
		statedb.RWTable[*tables.Exclusion].ToTable,
	),
	cell.Invoke(
		registerController, // devices and addresses into rows
		registerVerify,     // drift into pending rows
	),
)
