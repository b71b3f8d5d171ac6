package health

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("health", "Health of modules and duration of start hooks")
