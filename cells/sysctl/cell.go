package sysctl

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// Cell keeps kernel settings. It writes files below <procfs>/sys/net that rows name, and no others.
var Cell = cell.Module("sysctl", "Kernel settings that the agent wants",
	cell.ProvidePrivate(
		newProcfs,    // /proc/sys
		newAnnouncer, // netlink
	),
	Reconciler,
)

// Reconciler is the cell without its kernel, for tests that bring one of their own.
var Reconciler = cell.Group(
	cell.ProvidePrivate(
		tables.NewTable, // features contribute through the writer only
		newOps,
	),
	cell.Provide(
		statedb.RWTable[*tables.Setting].ToTable,
		newWriter, // how features contribute
	),
	cell.Invoke(registerReconciler, registerVerify),
)
