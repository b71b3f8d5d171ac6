package healthz

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("healthz", "Liveness and readiness over HTTP")
