package basedevices

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("base-devices", "The links of the agent itself")
