package endpointstate

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("endpoint-state", "What became of each endpoint")
