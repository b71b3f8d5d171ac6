package loader

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("loader", "Programs on their hooks")
