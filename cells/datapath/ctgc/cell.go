package ctgc

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// Cell deletes expired and orphaned flows from the conntrack, NAT and affinity maps.
var Cell = cell.Module("ct-gc", "Garbage collection of flows",
	cell.ProvidePrivate(newKernel, newNatKernel),              // the maps and the clock; tests replace them with a fake
	cell.ProvidePrivate(func() grace { return addressGrace }), // tests use a shorter time
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		conntrack.NewTable,   // only this cell writes
		natusage.NewTable,    // likewise
		nodetraffic.NewTable, // likewise
		newAccess,
		newCollector,
	),
	cell.Provide(
		statedb.RWTable[conntrack.Map].ToTable,        // read-only for other cells
		statedb.RWTable[natusage.Usage].ToTable,       // likewise
		statedb.RWTable[*nodetraffic.Traffic].ToTable, // likewise
		newCommands,    // ct/list, ct/top, ct/flush
		newNatCommands, // nat/list, nat/top, nat/flush
	),
	cell.Invoke(register),
)
