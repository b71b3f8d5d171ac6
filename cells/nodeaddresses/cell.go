package nodeaddresses

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("node-addresses", "Addresses of this node")
