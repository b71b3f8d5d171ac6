package maps

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("maps", "Pinned BPF maps")
