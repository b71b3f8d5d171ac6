// Package synchostips writes to the datapath the addresses of this node and of other nodes, with and without an API server, and the prefixes
// of the world for all other addresses.
//
// The destinations of routes of the types local, broadcast and anycast in the table local are addresses of the node as well. A policy that
// allows the world but not the host would otherwise let a pod reach the node's processes by the broadcast address of a subnet.
// Loopback and link-local addresses are excluded: pod_egress drops packets to them.
//
// Tables in: node-addresses, routes, local-node; nodes and k8s-endpointslices. Tables out: none. Tables contributed to: bpf-endpoints (addresses, owner
// "sync-host-ips"), ipcache (addresses and the two prefixes of the world, owners "sync-host-ips" and "nodes"). It owns nothing in the kernel. Until
// node-addresses and routes are initialized, the cell contributes nothing for this node, so that the map entries of a previous run stay until the desired ones
// are known. The first contribution is part of readiness.
package synchostips
