package sockterm

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
)

// Cell closes connected sockets whose backend was removed.
var Cell = cell.Module("socket-termination", "Termination of connections to removed backends",
	cell.ProvidePrivate(newKernel), // sockets; tests provide a fake
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newTable),                 // only this cell writes
	cell.Provide(statedb.RWTable[Closed].ToTable), // every cell may read
	cell.Invoke(register),
)
