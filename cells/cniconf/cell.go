package cniconf

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("cni-conf", "The CNI configuration list")
