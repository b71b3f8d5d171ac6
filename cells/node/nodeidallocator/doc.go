// Package nodeidallocator assigns a number to each other node of the cluster. BPF maps refer to nodes by these numbers.
//
// Tables in: nodes, conntrack. Table out: node-ids (complete once nodes is). It reads the maps ipcache and ipcache_prefixes, and node_addrs
// once. It owns the files ids.json, ids-1.json and so on in the directory nodes of the state directory and nothing in the kernel.
//
// A restart keeps all ids. An id in node_addrs that the files lack is reserved for the node with its address, one in ipcache for no node. The id of a
// removed node is freed when a pass of the flow collector has ended that began after the removal, because a flow entry may contain the id, and when no entry of
// ipcache contains the id. A node that is added under the same name before that keeps the id.
package nodeidallocator
