package sysctl

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("sysctl", "Kernel settings")
