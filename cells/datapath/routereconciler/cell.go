package routereconciler

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// Cell writes desired routes to the kernel. It owns the routes with protocol [desiredroutes.Protocol].
var Cell = cell.Module("desired-routes", "Routes of the agent",
	cell.ProvidePrivate(newKernel), // netlink
	Reconciler,
)

// Reconciler is the cell without its kernel, for tests that provide one.
var Reconciler = cell.Group(
	cell.ProvidePrivate(
		desiredroutes.NewTable, // features contribute through the writer only
		newOps,
	),
	cell.Provide(
		statedb.RWTable[*desiredroutes.Route].ToTable,
		newWriter, // interface for the contributions of features
	),
	cell.Invoke(registerReconciler, registerRepair),
)
