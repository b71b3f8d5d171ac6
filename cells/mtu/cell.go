package mtu

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("mtu", "Sizes of pod links and routes")
