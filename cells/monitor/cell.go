package monitor

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("monitor", "Events of the datapath")
