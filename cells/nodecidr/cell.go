package nodecidr

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("node-cidr", "Pod CIDRs of this node")
