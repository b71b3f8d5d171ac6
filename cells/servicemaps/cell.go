package servicemaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

// Cell is the module.
var Cell = cell.Module("service-maps", "Services as entries of BPF maps",
	cell.Provide(servicemaps.New), // the real maps, which others read; tests put fakes in their place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(servicemapusage.NewTable), // only this cell writes
	cell.Provide(
		statedb.RWTable[servicemapusage.Usage].ToTable, // anyone may read
		newListCommand, // lb/list
	),
	cell.Invoke(register), // rows into the maps, and back what somebody else changes there
)
