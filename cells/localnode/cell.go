package localnode

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("local-node", "This node as one row")
