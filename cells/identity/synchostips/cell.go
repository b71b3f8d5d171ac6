package synchostips

import "github.com/cilium/hive/cell"

// Cell contributes the addresses of nodes, and the world, to bpf-endpoints and ipcache.
var Cell = cell.Module("sync-host-ips", "Addresses of nodes in the datapath",
	cell.Invoke(
		registerController, // addresses of this node, and the world
		registerNodes,      // addresses of other nodes, with and without an API server
	),
)
