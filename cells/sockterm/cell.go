package sockterm

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
)

// Cell is the module.
var Cell = cell.Module("socket-termination", "Connections to backends that are gone",
	cell.ProvidePrivate(newKernel), // sockets; tests put a fake in their place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newTable),                 // only this cell writes
	cell.Provide(statedb.RWTable[Closed].ToTable), // anyone may read
	cell.Invoke(register),
)
