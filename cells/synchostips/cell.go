package synchostips

import "github.com/cilium/hive/cell"

// Cell is the module.
var Cell = cell.Module("sync-host-ips", "Addresses of the node for the datapath")
