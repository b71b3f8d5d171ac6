package shell

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("shell", "Script shell on a unix socket")
