package maps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// Cell opens and pins the BPF maps and gives them to other cells.
var Cell = cell.Module("maps", "Pinned BPF maps",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newKernel, // the BPF file system and the bpf system call; tests replace it with a fake
		newSpecs,  // names and layouts of the maps, from the programs' objects
	),
	implementation,
)

// implementation is the module without the providers that depend on the machine (kernel, specs).
var implementation = cell.Group(
	cell.ProvidePrivate(bpfmaps.NewTable), // only this cell writes
	cell.Provide(
		statedb.RWTable[*bpfmaps.Map].ToTable, // anyone may read
		newMaps,                               // the open maps, for other cells
		newCommands,                           // maps/dump
	),
	cell.Invoke(func(pinnedmaps.Maps) {}), // open the maps even if no other cell uses them
)
