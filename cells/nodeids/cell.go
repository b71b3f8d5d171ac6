package nodeids

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/nodeids"
)

// Cell keeps the table node-ids.
var Cell = cell.Module("nodeids", "Ids of the nodes of the cluster",
	cell.ProvidePrivate(newKernel), // the real maps
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(tables.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[*tables.NodeID].ToTable),
	cell.Invoke(registerController), // nodes into ids
)
