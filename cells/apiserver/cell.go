package apiserver

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("api-server", "REST API on a unix socket")
