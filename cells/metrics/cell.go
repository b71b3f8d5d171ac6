package metrics

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("metrics", "Prometheus metrics")
