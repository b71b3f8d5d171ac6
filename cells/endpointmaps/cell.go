package endpointmaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// Cell is the module.
var Cell = cell.Module("endpoint-maps", "Endpoints as entries of BPF maps",
	cell.ProvidePrivate(newKernel), // the real maps; tests put fakes in their place
	implementation,
)

// implementation is the module without its way to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate( // only this cell writes
		bpfendpoints.NewFactsTable,
		bpfendpoints.NewLinkTable,
		bpfendpoints.NewAddressTable,
		newInitializers, // what must be in before anything is pruned
		newVerifier,     // rows into the maps, and whether they still are there
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*bpfendpoints.Facts].ToTable,
		statedb.RWTable[*bpfendpoints.Link].ToTable,
		statedb.RWTable[*bpfendpoints.Address].ToTable,
		newHostWriter, // addresses of the node, from other cells
	),
	cell.Invoke(
		registerController, // endpoints and gateways into rows
		registerVerify,     // drift into pending rows
	),
)
