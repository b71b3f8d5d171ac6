package masquerademaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// Cell maintains the maps netdevs and unmasqueraded.
var Cell = cell.Module("masquerade", "Source addresses of packets that leave the node",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newKernel), // the real maps
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(
		masquerade.NewNetdevTable, masquerade.NewExclusionTable, // only this cell writes
		newRules,        // the checked flags
		newInitializers, // complete the tables
		newVerifier,     // writes rows to the maps and verifies them
	),
	cell.Provide( // every cell may read
		statedb.RWTable[*masquerade.Netdev].ToTable,
		statedb.RWTable[*masquerade.Exclusion].ToTable,
	),
	cell.Invoke(
		registerController, // devices and addresses into rows
		registerVerify,     // drift into pending rows
	),
)
