package cniconf

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
)

// Cell keeps the CNI configuration list. It reads the tables of readiness and fills cni-config.
var Cell = cell.Module("cni-conf", "The CNI configuration list",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newOptions,         // the flags, checked
		cniconfig.NewTable, // only this cell writes it
	),
	cell.Provide(statedb.RWTable[cniconfig.Config].ToTable),
	cell.Invoke(register), // the job that waits, writes and watches
)
