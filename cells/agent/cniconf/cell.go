package cniconf

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
)

// Cell writes the CNI configuration list once pods can be attached, and restores it after changes.
var Cell = cell.Module("cni-conf", "The CNI configuration list",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newOptions,         // checked flags
		cniconfig.NewTable, // only this cell writes it
	),
	cell.Provide(statedb.RWTable[cniconfig.Config].ToTable),
	cell.Invoke(register), // job that waits, writes and watches
)
