package maps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/bpfmaps"
	mapstable "github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// Cell is the module.
var Cell = cell.Module("maps", "Pinned BPF maps",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newKernel, // the BPF file system and the bpf system call; tests put a fake in its place
		newSpecs,  // which maps there are and how they look, from the programs' objects
	),
	implementation,
)

// implementation is the module without what it knows of the machine.
var implementation = cell.Group(
	cell.ProvidePrivate(mapstable.NewTable), // only this cell writes
	cell.Provide(
		statedb.RWTable[*mapstable.Map].ToTable, // anyone may read
		newMaps,                                 // the open maps, for other cells
		newCommands,                             // maps/dump
	),
	cell.Invoke(func(bpfmaps.Maps) {}), // opened also when no other cell asks
)
