package k8stables

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("k8s-tables", "Kubernetes objects as tables")
