package endpointmanager

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("endpoint-manager", "Which attachments are wanted")
