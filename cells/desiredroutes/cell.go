package desiredroutes

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// Cell keeps wanted routes in the kernel. It owns the routes with protocol [tables.Protocol].
var Cell = cell.Module("desired-routes", "Routes that the agent wants",
	cell.ProvidePrivate(newKernel), // netlink
	Reconciler,
)

// Reconciler is the cell without its kernel, for tests that bring one of their own.
var Reconciler = cell.Group(
	cell.ProvidePrivate(
		tables.NewTable, // features contribute through the writer only
		newOps,
	),
	cell.Provide(
		statedb.RWTable[*tables.Route].ToTable,
		newWriter, // how features contribute
	),
	cell.Invoke(registerReconciler, registerRepair),
)
