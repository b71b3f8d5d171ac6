package desiredroutes

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("desired-routes", "Routes of the agent")
