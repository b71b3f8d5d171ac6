package endpointmaps

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("endpoint-maps", "Endpoints as entries of BPF maps")
