package devices

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("devices", "Links addresses routes and neighbours of the kernel")
