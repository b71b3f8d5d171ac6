package endpointmaps

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// Cell writes the endpoints and the node's own addresses to the BPF maps.
var Cell = cell.Module("endpoint-maps", "Endpoints as entries of BPF maps",
	cell.ProvidePrivate(newKernel), // the real maps; tests provide fakes
	implementation,
)

// implementation is the module without its kernel.
var implementation = cell.Group(
	cell.ProvidePrivate( // only this cell writes
		bpfendpoints.NewFactsTable,
		bpfendpoints.NewLinkTable,
		bpfendpoints.NewAddressTable,
		newInitializers, // inputs that must be complete before entries are pruned
		newVerifier,     // reconcilers of the maps, and their verification
	),
	cell.Provide( // read by other cells
		statedb.RWTable[*bpfendpoints.Facts].ToTable,
		statedb.RWTable[*bpfendpoints.Link].ToTable,
		statedb.RWTable[*bpfendpoints.Address].ToTable,
		newHostWriter, // addresses of the node, from other cells
	),
	cell.Invoke(
		registerController, // computes rows from endpoints and gateways
		registerVerify,     // marks rows pending after drift
	),
)
