package servicemaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

// Cell writes services to the BPF maps.
var Cell = cell.Module("service-maps", "Services as entries of BPF maps",
	cell.Provide(servicemap.New), // the real maps, which other cells read; tests replace them with fakes
	implementation,
)

// implementation is the module without its access to the kernel.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(servicemapusage.NewTable), // only this cell writes
	cell.Provide(
		statedb.RWTable[servicemapusage.Usage].ToTable, // read-only for other cells
		newListCommand, // lb/list
	),
	cell.Invoke(register), // writes rows to the maps, and restores changed entries
)
