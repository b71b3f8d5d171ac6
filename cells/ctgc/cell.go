package ctgc

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// Cell is the module.
var Cell = cell.Module("ct-gc", "Flows that are over",
	cell.ProvidePrivate(newKernel, newNatKernel),          // the maps and the clock; tests put a fake in their place
	cell.ProvidePrivate(func() grace { return awayTime }), // tests do not wait so long
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		conntrack.NewTable,   // only this cell writes
		natusage.NewTable,    // likewise
		nodetraffic.NewTable, // likewise
		newCollector,
	),
	cell.Provide(
		statedb.RWTable[conntrack.Map].ToTable,        // anyone may read
		statedb.RWTable[natusage.Usage].ToTable,       // likewise
		statedb.RWTable[*nodetraffic.Traffic].ToTable, // likewise
		newCommands,    // ct/list, ct/top, ct/flush
		newNatCommands, // nat/list, nat/top, nat/flush
	),
	cell.Invoke(register),
)
