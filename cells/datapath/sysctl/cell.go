package sysctl

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// Cell keeps kernel settings at the values in the table sysctls. It writes only files below <procfs>/sys/net.
var Cell = cell.Module("sysctl", "Kernel settings that the agent requires",
	cell.ProvidePrivate(
		newProcfs,    // /proc/sys
		newAnnouncer, // netlink
	),
	Reconciler,
)

// Reconciler is the cell without the access to the kernel, for tests with a fake kernel.
var Reconciler = cell.Group(
	cell.ProvidePrivate(
		sysctls.NewTable, // features contribute through the writer only
		newOps,
	),
	cell.Provide(
		statedb.RWTable[*sysctls.Setting].ToTable,
		newWriter, // interface for features
	),
	cell.Invoke(registerReconciler, registerVerify),
)
