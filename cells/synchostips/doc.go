// Package synchostips tells the datapath which addresses are this node's own, which are other nodes', with and without an API
// server, and which are everybody else's.
//
// Tables in: node-addresses, local-node; k8s-nodes, cilium-nodes and k8s-endpointslices. It writes no table of its own:
// through the writers of bpf-endpoints (owner "sync-host-ips") and ipcache (owners "sync-host-ips" and "nodes") it
// contributes addresses and the two prefixes of the world. It owns nothing in the kernel. Until node-addresses is
// initialized nothing of this node is contributed, so that what an earlier run left in the maps stays until it is known
// what must stand there. The first contribution is part of readiness.
package synchostips
