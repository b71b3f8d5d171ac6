// Package synchostips tells the datapath which addresses are this node's own, which are other nodes', with and without an API
// server, and which are everybody else's.
//
// The destinations of routes of the types local, broadcast and anycast in the table local are addresses of the node as well. A policy that
// allows the world but not the host would otherwise let a pod reach the node's processes by the broadcast address of a subnet.
// Loopback and link-local addresses are left out: pod_egress drops packets to them.
//
// Tables in: node-addresses, routes, local-node; nodes and k8s-endpointslices. It writes no table of its own:
// through the writers of bpf-endpoints (owner "sync-host-ips") and ipcache (owners "sync-host-ips" and "nodes") it
// contributes addresses and the two prefixes of the world. It owns nothing in the kernel. Until node-addresses and
// routes are initialized nothing of this node is contributed, so that what an earlier run left in the maps stays until it is known
// what must stand there. The first contribution is part of readiness.
package synchostips
