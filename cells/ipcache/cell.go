package ipcache

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("ipcache", "Identities behind prefixes")
