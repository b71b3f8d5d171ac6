package ipam

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("ipam", "Pod addresses")
