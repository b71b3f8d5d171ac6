package nodes

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Cell keeps the table nodes.
var Cell = cell.Module("nodes", "The nodes of the cluster",
	cell.ProvidePrivate(tables.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[*tables.Node].ToTable),
	cell.Invoke(registerController), // objects into rows
)
