// Package synchostips tells the datapath which addresses are the node's own and which are everybody else's.
//
// Tables in: node-addresses, local-node. It writes no table of its own: through the writers of bpf-endpoints (owner
// "sync-host-ips") and ipcache (same owner) it contributes the node's addresses and the two prefixes of the world.
// It owns nothing in the kernel. Until node-addresses is initialized nothing is contributed, so that what an earlier run
// left in the maps stays until it is known what must stand there.
package synchostips
