package linkreaper

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("link-reaper", "Deletes the links of detached pods")
