package nodelist

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Cell writes the table nodes.
var Cell = cell.Module("nodes", "The nodes of the cluster",
	cell.ProvidePrivate(newTrustedRanges), // file in the state directory; tests provide their own
	implementation,
)

// implementation is the module without the file of former ranges.
var implementation = cell.Group(
	cell.ProvidePrivate(nodes.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[*nodes.Node].ToTable),
	cell.Invoke(registerController), // objects into rows
)
