package synchostips

import "github.com/cilium/hive/cell"

// Cell contributes the node's addresses, and the world, to bpf-endpoints and ipcache.
var Cell = cell.Module("sync-host-ips", "Addresses of the node in the datapath",
	cell.Invoke(registerController),
)
