package nodeidallocator

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeids"
)

// Cell assigns a number to each other node. It is the only writer of the table node-ids.
var Cell = cell.Module("nodeids", "Ids of the nodes of the cluster",
	cell.ProvidePrivate(newKernel), // pinned maps
	implementation,
)

// implementation is the module without the access to BPF maps.
var implementation = cell.Group(
	cell.ProvidePrivate(nodeids.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[*nodeids.NodeID].ToTable),
	cell.Invoke(registerController), // assigns ids to the rows of nodes
)
